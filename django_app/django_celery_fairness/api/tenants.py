"""Tenants and tiers of the database; a change is published on commit, as one in the admin is."""

from __future__ import annotations

from copy import copy
from typing import TypeVar

from django.db import router as databases
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Router

from celery_fairness.config.tenants import normalise
from celery_fairness.config.tiers import NAME
from celery_fairness.control.key.limits_api import PAGE_LENGTH
from celery_fairness.control.key.views import Pagination
from django_celery_fairness.api.audit import ADDED, CHANGED, DELETED, wrote
from django_celery_fairness.api.auth import access, caller_of
from django_celery_fairness.api.errors import ApiError, named_in_url
from django_celery_fairness.api.schemas import (
    READ,
    WRITE,
    Body,
    Error,
    PageLength,
    PageNumber,
    TenantBody,
    TenantPage,
    TenantState,
    TierBody,
    TierPage,
    TierState,
)
from django_celery_fairness.models import TenantTier, Tier, UnpublishedChange
from django_celery_fairness.number_fields import shown_in, stored
from django_celery_fairness.permissions import Action, saving

Row = TypeVar("Row", bound=Model)

TIERS, TENANT = UnpublishedChange.Kind.TIERS, UnpublishedChange.Kind.TENANT

router = Router()
_tiers = Router(auth=access(Action.SEE_TIERS), tags=["tiers"])
_tenants = Router(auth=access(Action.SEE_TENANTS), tags=["tenants"])


@_tiers.get("tiers", response={200: TierPage, READ: Error})
def list_tiers(
    request: HttpRequest,
    page: PageNumber = 1,
    per_page: PageLength = PAGE_LENGTH,
) -> TierPage:
    """Return the tiers by name."""
    rows, total = _page_of(Tier.objects.order_by("name"), page, per_page)
    published = _is_published(TIERS)
    return TierPage(
        items=tuple(_tier_state(row, published) for row in rows),
        pagination=Pagination(total=total, page=page, per_page=per_page),
    )


@_tiers.get("tiers/{anything:name}", response={200: TierState, READ: Error})
def get_tier(request: HttpRequest, name: str) -> TierState:
    """Return a tier."""
    return _tier_state(_tier(name), _is_published(TIERS))


@_tiers.put(
    "tiers/{anything:name}",
    response={200: TierState, WRITE: Error},
    auth=access(Action.ADD_TIERS, Action.CHANGE_TIERS),
)
def put_tier(request: HttpRequest, name: str, body: TierBody) -> TierState:
    """Replace a tier, or add it."""
    if not NAME.accepts(name):
        raise ApiError(404, "not_found", NAME.problem("tier name", name))
    row = Tier.objects.filter(name=name).first() or Tier(name=name)
    _save(request, "tier", name, row, body)
    return _tier_state(row, _is_published(TIERS))


@_tiers.delete(
    "tiers/{anything:name}",
    response={204: None, WRITE: Error},
    auth=access(Action.DELETE_TIERS),
)
def delete_tier(request: HttpRequest, name: str) -> HttpResponse:
    """Delete a tier that no tenant has and that is not the default tier."""
    _delete(request, "tier", name, _tier(name))
    return HttpResponse(status=204)


@_tenants.get("tenants", response={200: TenantPage, READ: Error})
def list_tenants(
    request: HttpRequest,
    page: PageNumber = 1,
    per_page: PageLength = PAGE_LENGTH,
) -> TenantPage:
    """Return the tenants that have a row, by name; all others have the default tier."""
    rows, total = _page_of(
        TenantTier.objects.select_related("tier").order_by("tenant"), page, per_page
    )
    changes = UnpublishedChange.objects.filter(kind=TENANT, name__in=[row.tenant for row in rows])
    pending = set(changes.values_list("name", flat=True))
    return TenantPage(
        items=tuple(_tenant_state(row, row.tenant not in pending) for row in rows),
        pagination=Pagination(total=total, page=page, per_page=per_page),
    )


@_tenants.get("tenants/{anything:tenant}", response={200: TenantState, READ: Error})
def get_tenant(
    request: HttpRequest,
    tenant: str,
) -> TenantState:
    """Return the tier of a tenant; its running tasks are at ``rate-limits/tenant:{tenant}``."""
    row = _tenant(tenant)
    return _tenant_state(row, _is_published(TENANT, row.tenant))


@_tenants.put(
    "tenants/{anything:tenant}",
    response={200: TenantState, WRITE: Error},
    auth=access(Action.ADD_TENANTS, Action.CHANGE_TENANTS),
)
def put_tenant(request: HttpRequest, tenant: str, body: TenantBody) -> TenantState:
    """Give a tenant a tier, a number of its own or none, and times or none."""
    name = _tenant_name(tenant)
    tier = Tier.objects.filter(name=body.tier).first()
    if tier is None:
        raise ApiError(409, "conflict", f"there is no tier {body.tier!r}")
    row = TenantTier.objects.filter(tenant=name).first() or TenantTier(tenant=name)
    _save(request, "tenant", name, row, body, tier=tier)
    return _tenant_state(row, _is_published(TENANT, name))


@_tenants.delete(
    "tenants/{anything:tenant}",
    response={204: None, WRITE: Error},
    auth=access(Action.DELETE_TENANTS),
)
def delete_tenant(request: HttpRequest, tenant: str) -> HttpResponse:
    """Delete the row of a tenant, which has the default tier then."""
    row = _tenant(tenant)
    _delete(request, "tenant", row.tenant, row)
    return HttpResponse(status=204)


router.add_router("", _tiers)
router.add_router("", _tenants)


def _page_of(rows: QuerySet[Row], page: int, per_page: int) -> tuple[list[Row], int]:
    """Return the rows of one page, and the number of all rows."""
    return list(rows[(page - 1) * per_page : page * per_page]), rows.count()


def _save(
    request: HttpRequest, what: str, name: str, row: Model, body: Body, **related: Model
) -> None:
    caller_of(request).expect(saving(type(row), is_saved=row.pk is not None))
    flag = CHANGED if row.pk else ADDED
    # A tier and a tenant have their numbers by the same words in the table of numbers.
    for field, value in (stored(what, body.model_dump()) | related).items():
        setattr(row, field, value)
    row.full_clean()
    with transaction.atomic(using=databases.db_for_write(type(row))):
        row.save()
        wrote(request, what, name, body.model_dump(mode="json"), row=row, flag=flag)


def _delete(request: HttpRequest, what: str, name: str, row: Model) -> None:
    with transaction.atomic(using=databases.db_for_write(type(row))):
        # The deletion takes the id of the object, and the history needs it.
        copy(row).delete()
        wrote(request, what, name, None, row=row, flag=DELETED)


def _tier(name: str) -> Tier:
    row = Tier.objects.filter(name=name).first() if NAME.accepts(name) else None
    if row is None:
        raise ApiError(404, "not_found", f"there is no tier {name!r}")
    return row


def _tenant(tenant: str) -> TenantTier:
    rows = TenantTier.objects.select_related("tier").filter(tenant=_tenant_name(tenant))
    row = rows.first()
    if row is None:
        raise ApiError(
            404, "not_found", f"the tenant {tenant!r} has no row: the default tier holds"
        )
    return row


def _tenant_name(tenant: str) -> str:
    with named_in_url():
        name = normalise(tenant)
    # PostgreSQL stores no NUL.
    if name is None or "\x00" in name:
        raise ApiError(404, "not_found", f"tenant: expected a text without NUL, got: {tenant!r}")
    return name


def _is_published(kind: str, name: str = "") -> bool:
    return not UnpublishedChange.objects.filter(kind=kind, name=name).exists()


def _tier_state(row: Tier, published: bool) -> TierState:
    return TierState(
        name=row.name,
        queue_class=row.queue_class,
        description=row.description,
        published=published,
        **shown_in("tier", row),
    )


def _tenant_state(row: TenantTier, published: bool) -> TenantState:
    return TenantState(
        tenant=row.tenant,
        tier=row.tier.name,
        note=row.note,
        valid_from=row.valid_from,
        valid_until=row.valid_until,
        published=published,
        **shown_in("tenant", row),
    )
