"""A module that a worker imports when it has run for a while."""

from __future__ import annotations

from celery import shared_task


@shared_task(name="kinds.later")
def later() -> str:
    """Be known from now on."""
    return "known now"
