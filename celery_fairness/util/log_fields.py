"""The fields of log records, for loggers that write JSON.

A line is for people. Its fields have the same names in every line, and the line has their values
too. A field without a value is absent.
"""

from __future__ import annotations

#: The names of all fields. Celery's own lines have the first two.
FIELDS = ("task_name", "task_id", "tenant", "tier", "queue", "key")


def about(
    *,
    task_name: str | None = None,
    task_id: str | None = None,
    tenant: str | None = None,
    tier: str | None = None,
    queue: str | None = None,
    key: str | None = None,
) -> dict[str, str]:
    """Return what a line is about, as the ``extra`` of a log call."""
    given = (task_name, task_id, tenant, tier, queue, key)
    # A tenant may be of a subclass of str.
    return {name: str(value) for name, value in zip(FIELDS, given, strict=True) if value}
