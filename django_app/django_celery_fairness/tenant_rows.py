"""The rows of the database of the tenants on a page about Redis.

Weakness: a tenant whose name cannot be in a key has no link, because the key has a hash of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from celery_fairness.config.tenants import read_tier_key
from celery_fairness.errors import FairnessError
from django_celery_fairness import wiring
from django_celery_fairness.models import TenantTier
from django_celery_fairness.permissions import APP, Action

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]


class TenantRows:
    """The addresses of rows, read with one query.

    Args:
        page: The page with the links.
        request: Its request. A person who may not see rows gets no address.
        keys: The keys of the tenants.
    """

    def __init__(self, page: ModelAdmin, request: HttpRequest, keys: Iterable[str]) -> None:
        self._site = page.admin_site.name
        names = {tenant_of(key) for key in keys} - {""}
        self._ids: dict[str, int] = {}
        if names and Action.SEE_TENANTS.allowed(request.user):
            found = TenantTier.objects.filter(tenant__in=names)
            self._ids = dict(found.values_list("tenant", "pk"))

    def url(self, key: str) -> str:
        """Return the address of the row of a tenant's key, or "" if there is none."""
        row = self._ids.get(tenant_of(key))
        if row is None:
            return ""
        return reverse(f"admin:{APP}_tenanttier_change", args=[row], current_app=self._site)


def tenant_of(key: str) -> str:
    """Return the tenant of a key; "" if it is no tenant's key."""
    try:
        by_service = wiring.settings_in_force().tier_scope == "service"
    except FairnessError:
        by_service = False
    found = read_tier_key(key, by_service)
    return found[0] if found else ""
