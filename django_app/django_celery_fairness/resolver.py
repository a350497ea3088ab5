"""The ``tier_resolver`` of a project with this app: it reads a tenant's tier from the database.

Invariant: it makes one query, and leaves the thread's database connection in its former state. A
connection that it opened is closed by the rule of ``CONN_MAX_AGE``. A connection that the server
has dropped is opened again, once, because workers' threads outlive connections.

Weakness: it has no cache. The tier cache stores its answers for ``tier_cache_seconds``, reads
changes from Redis, and uses the default tier after an error.
"""

from __future__ import annotations

from django.db import InterfaceError, OperationalError, connections, router
from django.utils import timezone

from django_celery_fairness.models import TenantTier


def tier_of(tenant: str) -> str | None:
    """Return the name of the tenant's tier; None if it has no row, or is out of its row's time.

    Args:
        tenant: The tenant's id.

    Raises:
        django.db.Error: The database does not answer.
    """
    alias = router.db_for_read(TenantTier)
    connection = connections[alias]
    was_open = connection.connection is not None
    try:
        return _query(alias, tenant)
    except (InterfaceError, OperationalError):
        if not was_open or connection.in_atomic_block:
            raise
        connection.close()
        return _query(alias, tenant)
    finally:
        if not was_open:
            connection.close_if_unusable_or_obsolete()


def _query(alias: str, tenant: str) -> str | None:
    rows = TenantTier.objects.using(alias).in_force(timezone.now()).filter(tenant=tenant).order_by()
    return rows.values_list("tier__name", flat=True).first()
