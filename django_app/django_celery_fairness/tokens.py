"""Tokens of the HTTP API: made once, found by their prefix, compared by their hash.

Invariant: the database has no token, only the SHA-256 of each. A fast hash is enough, because a
guess of 256 random bits cannot succeed.

Weakness: the time of the last use is up to a minute old, so that a request does not always write.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from django.db import router
from django.urls import URLResolver
from django.utils import timezone

from django_celery_fairness.models import ApiToken

View = TypeVar("View", bound=Callable[..., Any])

#: Time between two writes of the last use.
USE_EVERY = timedelta(minutes=1)
#: The form of a token. Its fixed beginning lets scanners find one that was published by mistake.
_FORM = re.compile(r"fairness_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")


def taken(view: View) -> View:
    """Mark a view that takes tokens."""
    view.takes_tokens = True  # type: ignore[attr-defined]
    return view


@functools.cache
def are_taken(resolver: URLResolver) -> bool:
    """Return whether any address below a resolver takes tokens."""
    return any(
        are_taken(each)
        if isinstance(each, URLResolver)
        else getattr(each.callback, "takes_tokens", False)
        for each in resolver.url_patterns
    )


def create(name: str, scope: str, owner: Any = None) -> tuple[ApiToken, str]:
    """Make a token; return its row, and the token itself, which is returned only here.

    Raises:
        ValidationError: A token of this name exists and is not revoked, or a value is invalid.
    """
    row = ApiToken(name=name, scope=scope, owner=owner)
    text = give_secret(row)
    row.full_clean()
    row.save()
    return row, text


def give_secret(row: ApiToken) -> str:
    """Give a new row its prefix and its hash; return the token itself."""
    row.prefix = secrets.token_hex(4)
    text = f"fairness_{row.prefix}_{secrets.token_urlsafe(32)}"
    row.digest = _digest(text)
    return text


def find(text: str) -> ApiToken | None:
    """Return the row of a token that may be used, and record its use; None without one."""
    form = _FORM.fullmatch(text)
    if form is None:
        return None
    # A replica may still have a token that is revoked.
    rows = ApiToken.objects.using(router.db_for_write(ApiToken)).select_related("owner")
    row = rows.filter(prefix=form[1], revoked_at=None).first()
    # An unknown prefix takes as long as a wrong secret.
    stored = _digest("") if row is None else row.digest
    if not hmac.compare_digest(stored, _digest(text)) or row is None:
        return None
    _note_use(row)
    return row


def revoke(name: str) -> bool:
    """Revoke the token of a name; return whether there was one."""
    rows = ApiToken.objects.filter(name=name, revoked_at=None)
    return bool(rows.update(revoked_at=timezone.now()))


def _note_use(row: ApiToken) -> None:
    now = timezone.now()
    if row.last_used_at is None or now - row.last_used_at >= USE_EVERY:
        # If several requests come at once, one of them writes.
        before = ApiToken.objects.filter(pk=row.pk, last_used_at=row.last_used_at)
        before.update(last_used_at=now)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
