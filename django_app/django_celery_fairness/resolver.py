"""The tier of a tenant, from the database: ``tier_resolver`` of a project with this app.

Invariant: one query, and the thread's database connection is left as it was found: one that was
opened here is closed as ``CONN_MAX_AGE`` says, one that was open stays open. A connection that the
server has dropped meanwhile (workers' threads outlive them) is opened anew, once.

Weakness: nothing is cached here. The resolver chain caches for ``tier_cache_seconds`` and hears of
changes through Redis; errors are the chain's business too, which then uses the default tier.
"""

from __future__ import annotations

from django.db import InterfaceError, OperationalError, connections, router

from django_celery_fairness.models import TenantTier


def tier_of(tenant: str) -> str | None:
    """Return the name of the tenant's tier, or None where it has no row.

    Args:
        tenant: As tasks give it.

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
    rows = TenantTier.objects.using(alias).filter(tenant=tenant).order_by()
    return rows.values_list("tier__name", flat=True).first()
