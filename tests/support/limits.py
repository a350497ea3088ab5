"""Limits for tests."""

from __future__ import annotations

from typing import Any

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.numbers import NUMBERS


def changed(limit: Limit, **changes: Any) -> Limit:
    """Return a limit with other fields or numbers; a number None is none."""
    own = {"on_limit": limit.on_limit, "private": limit.private, "of": limit.of}
    fields = {"key": limit.key, **own, **dict(limit.numbers), **changes}
    assert set(fields) <= {"key", *own, *NUMBERS}
    return Limit(fields.pop("key"), **fields)
