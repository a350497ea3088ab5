"""What an operator does on a page of the admin."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django_celery_fairness.redis_pages import quoted

from tests.django.suite.test_admin import read

APP = "admin:django_celery_fairness"


def url(page: str, *names: str) -> str:
    """Return the address of a page, such as ``limitkey_change``."""
    return reverse(f"{APP}_{page}", args=list(map(quoted, names)))


def show(client: Any, page: str, /, *names: str, **query: str) -> str:
    """Return a page as a person reads it."""
    return read(client.get(url(page, *names), query))


def do(client: Any, page: str, /, *names: str, **fields: Any) -> str:
    """Send a form, and return the page that follows."""
    return read(client.post(url(page, *names), fields, follow=True))


def history() -> list[tuple[str, str, str]]:
    """Return who changed what and why, the oldest first."""
    entries = LogEntry.objects.order_by("pk")
    return [(str(each.user), each.object_repr, each.change_message) for each in entries]
