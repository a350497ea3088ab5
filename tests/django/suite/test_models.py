from __future__ import annotations

import math

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import DataError, IntegrityError, models, transaction
from django.db.models import ProtectedError
from django_celery_fairness.models import TenantTier, Tier

from celery_fairness.config.tiers import Tier as PublishedTier

pytestmark = pytest.mark.django_db

TIER_BOUNDS = [
    ("concurrency", (None, 0, 1, 1_000_000), (-1, 1_000_001)),
    ("weight", (1e-9, 1.0, 1_000_000.0), (0.0, -1.0, 1_000_000.5, math.inf, math.nan, None)),
    ("max_waiting", (None, 1, 1_000_000_000), (-1, 0, 1_000_000_001)),
    ("queue_class", ("priority", "default"), ("fast", "")),
    ("name", ("a", "Pro_plus-2", "x" * 100), ("", "x" * 101)),
]
TENANT_BOUNDS = [
    ("concurrency", (None, 0, 1_000_000), (-1, 1_000_001)),
    ("tenant", ("4", "x" * 200, "é" * 100, "🙂" * 50), ("", "x" * 201, "é" * 101, "🙂" * 51)),
]


def good(bounds):
    return [(field, value) for field, accepted, _ in bounds for value in accepted]


def bad(bounds):
    return [(field, value) for field, _, refused in bounds for value in refused]


def tier(**fields) -> Tier:
    return Tier(**{"name": "gold", "concurrency": 2, **fields})


def tenant(**fields) -> TenantTier:
    return TenantTier(**{"tenant": "42", "tier": Tier.objects.get(name="pro"), **fields})


@pytest.mark.parametrize(("field", "value"), good(TIER_BOUNDS))
def test_a_tier_within_its_bounds_is_stored(field, value):
    row = tier(**{field: value})
    row.full_clean()
    row.save()
    row.refresh_from_db()
    assert getattr(row, field) == value


@pytest.mark.parametrize(("field", "value"), bad(TIER_BOUNDS))
def test_the_database_refuses_a_tier_out_of_bounds(field, value):
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        tier(**{field: value}).save()
    Tier.objects.bulk_create([tier()])
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        Tier.objects.filter(name="gold").update(**{field: value})


@pytest.mark.parametrize(("field", "value"), bad(TIER_BOUNDS))
def test_a_form_names_the_field_of_a_tier_out_of_bounds(field, value):
    with pytest.raises(ValidationError) as refusal:
        tier(**{field: value}).full_clean()
    assert field in refusal.value.message_dict


@pytest.mark.parametrize("name", ["a b", "a:b", "é", "a\n"])
def test_a_form_refuses_a_name_that_no_queue_could_carry(name):
    with pytest.raises(ValidationError, match="letters, digits"):
        tier(name=name).full_clean()


@pytest.mark.parametrize(("field", "value"), good(TENANT_BOUNDS))
def test_a_tenant_within_its_bounds_is_stored(field, value):
    row = tenant(**{field: value})
    row.full_clean()
    row.save()
    row.refresh_from_db()
    assert getattr(row, field) == value


@pytest.mark.parametrize(("field", "value"), bad(TENANT_BOUNDS))
def test_the_database_refuses_a_tenant_out_of_bounds(field, value):
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        tenant(**{field: value}).save()
    TenantTier.objects.bulk_create([tenant()])
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        TenantTier.objects.filter(tenant="42").update(**{field: value})


@pytest.mark.parametrize(("field", "value"), bad(TENANT_BOUNDS))
def test_a_form_names_the_field_of_a_tenant_out_of_bounds(field, value):
    with pytest.raises(ValidationError) as refusal:
        tenant(**{field: value}).full_clean()
    assert field in refusal.value.message_dict


@pytest.mark.parametrize("make", [tier, tenant])
def test_names_and_tenants_are_unique(make):
    make().save()
    with pytest.raises(IntegrityError), transaction.atomic():
        make().save()


def test_a_tier_that_a_tenant_has_cannot_be_deleted():
    tenant().save()
    with pytest.raises(ProtectedError):
        Tier.objects.get(name="pro").delete()
    assert Tier.objects.filter(name="pro").exists()


def test_the_default_tier_can_be_neither_deleted_nor_renamed():
    free = Tier.objects.get(name="free")
    with pytest.raises(ProtectedError, match="default tier"):
        free.delete()
    with pytest.raises(ProtectedError, match="default tier"):
        Tier.objects.all().delete()
    free.name = "gratis"
    with pytest.raises(ProtectedError, match="default tier"), transaction.atomic():
        free.save()
    assert Tier.objects.filter(name="free").exists()


def test_the_default_tier_is_the_one_of_the_settings(wire):
    wire(default_tier="pro")
    Tier.objects.get(name="free").delete()
    with pytest.raises(ProtectedError, match="default tier"):
        Tier.objects.get(name="pro").delete()


def test_a_tier_is_published_as_it_is_stored():
    row = tier(concurrency=None, weight=2.5, queue_class="priority", max_waiting=10)
    assert row.published() == PublishedTier("gold", None, 2.5, "priority", 10)


@pytest.mark.parametrize("model", [Tier, TenantTier])
def test_every_field_has_a_help_text_with_an_example(model):
    fields = [field for field in model._meta.fields if not isinstance(field, models.BigAutoField)]
    assert fields
    for field in fields:
        assert "for example" in field.help_text.lower(), field.name


def test_the_migrations_say_what_the_models_say():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
