from __future__ import annotations

import math
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import DataError, IntegrityError, connection, models, transaction
from django.db.models import ProtectedError
from django.utils import timezone
from django_celery_fairness.models import LimitOverride, QueueLimit, TenantTier, Tier

from celery_fairness.config.tiers import Tier as PublishedTier
from tests.django.suite.conftest import NOWHERE

pytestmark = pytest.mark.django_db

TIER_BOUNDS = [
    ("concurrency", (None, 0, 1, 1_000_000), (-1, 1_000_001)),
    ("weight", (1e-9, 1.0, 1_000_000.0), (0.0, -1.0, 1_000_000.5, math.inf, math.nan, None)),
    ("max_waiting", (None, 1, 1_000_000_000), (-1, 0, 1_000_000_001)),
    ("queue_class", ("priority", "default"), ("fast", "")),
    (
        "name",
        ("a", "Pro_plus-2", "x" * 100),
        ("", "x" * 101, "Pro Plus", " a", "a ", "a:b", "é", "a\n"),
    ),
]
TENANT_BOUNDS = [
    ("concurrency", (None, 0, 1_000_000), (-1, 1_000_001)),
    ("rate", ("", "1/s", "1000000000/PT720H"), ("many", "unlimited", "1/" + "0" * 49)),
    ("throttle", ("", "60/m"), ("60", "unlimited")),
    ("tenant", ("4", "x" * 200, "é" * 100, "🙂" * 50), ("", "x" * 201, "é" * 101, "🙂" * 51)),
]
QUEUE_BOUNDS = [
    ("queue", ("q", "a b:c", "é" * 127), ("", "@parked:redis", "x" * 256, "é" * 128)),
    ("global_limit", (None, 0, 1_000_000), (-1, 1_000_001)),
    ("local_limit", (None, 0, 1_000_000), (-1, 1_000_001)),
    ("rate", ("", "1/s", "1000000/PT24H"), ("many", "unlimited", "1/" + "0" * 49)),
    ("throttle", ("", "60/m"), ("60", "unlimited")),
    ("on_limit", ("wait", "reschedule", "drop"), ("", "reject")),
]
OVERRIDE_BOUNDS = [
    ("key", ("api", "queue:mail", "x" * 255), ("", "x" * 256)),
    ("concurrency", ("0", "007", "1000000", "unlimited"), ("-1", "1000001", "9999999", "many")),
    ("rate", ("", "unlimited", "100/PT1M"), ("many", "100")),
    ("throttle", ("", "unlimited", "100/m"), ("many", "100")),
    ("reason", ("", "why", "é" * 500), ("x" * 2001,)),
]


@pytest.fixture(autouse=True)
def claiming(wire):
    """An app whose workers check every queue, and a Redis that nothing calls."""
    wire(f"fair{NOWHERE}")


def good(bounds):
    return [(field, value) for field, accepted, _ in bounds for value in accepted]


def bad(bounds):
    return [(field, value) for field, _, rejected in bounds for value in rejected]


def tier(**fields) -> Tier:
    return Tier(**{"name": "gold", "concurrency": 2, **fields})


def tenant(**fields) -> TenantTier:
    return TenantTier(**{"tenant": "42", "tier": Tier.objects.get(name="pro"), **fields})


def queue_limit(**fields) -> QueueLimit:
    return QueueLimit(**{"queue": "emails", "global_limit": 2, **fields})


def override(**fields) -> LimitOverride:
    return LimitOverride(**{"key": "api", "concurrency": "2", "reason": "a sale", **fields})


LIMITS = [(queue_limit, QUEUE_BOUNDS), (override, OVERRIDE_BOUNDS)]


@pytest.mark.parametrize(
    ("make", "field", "value"), [(make, *each) for make, bounds in LIMITS for each in good(bounds)]
)
def test_a_limit_within_its_bounds_is_stored(make, field, value):
    row = make(**{field: value})
    row.full_clean()
    row.save()
    row.refresh_from_db()
    assert getattr(row, field) == value


@pytest.mark.parametrize(
    ("make", "field", "value"), [(make, *each) for make, bounds in LIMITS for each in bad(bounds)]
)
def test_the_database_rejects_a_limit_out_of_bounds(make, field, value):
    model = type(make())
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        model.objects.bulk_create([make(**{field: value})])
    model.objects.bulk_create([make()])
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        model.objects.update(**{field: value})


@pytest.mark.parametrize(
    ("make", "field", "value"), [(make, *each) for make, bounds in LIMITS for each in bad(bounds)]
)
def test_a_form_names_the_field_of_a_limit_out_of_bounds(make, field, value):
    with pytest.raises(ValidationError) as rejection:
        make(**{field: value}).full_clean()
    assert field in rejection.value.message_dict


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (queue_limit, "rate", "0/m"),
        (queue_limit, "throttle", "1/fortnight"),
        (override, "rate", "1000000001/s"),
        (override, "throttle", "1/P1Y"),
        (override, "key", "a b"),
        (override, "key", "tenant:"),
        (override, "key", "{tenant}"),
        (override, "key", "api*"),
        (override, "key", "tenant:*"),
    ],
)
def test_a_form_rejects_what_only_the_package_can_read(make, field, value):
    with pytest.raises(ValidationError) as rejection:
        make(**{field: value}).full_clean()
    assert list(rejection.value.message_dict) == [field]


def test_an_override_needs_a_number():
    with pytest.raises(ValidationError, match="at least one number"):
        override(concurrency="").full_clean()
    with pytest.raises(IntegrityError), transaction.atomic():
        LimitOverride.objects.bulk_create([override(concurrency="")])


def test_an_override_of_a_tenant_may_have_any_number():
    override(key="tenant:42", concurrency="", rate="1/s", throttle="2/s").full_clean()


def test_a_tenants_time_ends_after_it_begins():
    now = timezone.now()
    tenant(valid_from=now, valid_until=now + timedelta(microseconds=1)).full_clean()
    for end in (now, now - timedelta(days=1)):
        row = tenant(valid_from=now, valid_until=end)
        with pytest.raises(ValidationError, match="after the beginning"):
            row.full_clean()
        with pytest.raises(IntegrityError), transaction.atomic():
            TenantTier.objects.bulk_create([row])


def test_raw_sql_meets_the_constraints_too():
    queue_limit().save()
    for change in ("rate = 'many'", "on_limit = 'reject'", "global_limit = 1000001"):
        with (
            pytest.raises(IntegrityError),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(f"UPDATE django_celery_fairness_queuelimit SET {change}")


@pytest.mark.parametrize(("field", "value"), good(TIER_BOUNDS))
def test_a_tier_within_its_bounds_is_stored(field, value):
    row = tier(**{field: value})
    row.full_clean()
    row.save()
    row.refresh_from_db()
    assert getattr(row, field) == value


@pytest.mark.parametrize(("field", "value"), bad(TIER_BOUNDS))
def test_the_database_rejects_a_tier_out_of_bounds(field, value):
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        tier(**{field: value}).save()
    Tier.objects.bulk_create([tier()])
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        Tier.objects.filter(name="gold").update(**{field: value})


@pytest.mark.parametrize(("field", "value"), bad(TIER_BOUNDS))
def test_a_form_names_the_field_of_a_tier_out_of_bounds(field, value):
    with pytest.raises(ValidationError) as rejection:
        tier(**{field: value}).full_clean()
    assert field in rejection.value.message_dict


@pytest.mark.parametrize("name", ["a b", "a:b", "é", "a\n"])
def test_a_form_rejects_a_name_that_no_queue_could_carry(name):
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
def test_the_database_rejects_a_tenant_out_of_bounds(field, value):
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        tenant(**{field: value}).save()
    TenantTier.objects.bulk_create([tenant()])
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        TenantTier.objects.filter(tenant="42").update(**{field: value})


@pytest.mark.parametrize(("field", "value"), bad(TENANT_BOUNDS))
def test_a_form_names_the_field_of_a_tenant_out_of_bounds(field, value):
    with pytest.raises(ValidationError) as rejection:
        tenant(**{field: value}).full_clean()
    assert field in rejection.value.message_dict


@pytest.mark.parametrize("make", [tier, tenant, queue_limit, override])
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
    with pytest.raises(ProtectedError, match="default tier"):
        Tier.objects.filter(pk=free.pk).update(name="gratis")
    with pytest.raises(ProtectedError, match="default tier"), transaction.atomic():
        Tier.objects.bulk_update([free], ["name"])
    assert Tier.objects.filter(name="free").exists()
    # A name that stays is none that changes.
    free.name = "free"
    pro = Tier.objects.get(name="pro")
    pro.name = "best"
    Tier.objects.bulk_update([free, pro], ["name"])
    assert Tier.objects.filter(name="free").update(name="free") == 1
    assert Tier.objects.filter(name="best").exists()


def test_the_default_tier_is_the_one_of_the_settings(wire):
    wire(default_tier="pro")
    Tier.objects.get(name="free").delete()
    with pytest.raises(ProtectedError, match="default tier"):
        Tier.objects.get(name="pro").delete()


def test_a_tier_is_published_as_it_is_stored():
    row = tier(concurrency=None, weight=2.5, queue_class="priority", max_waiting=10, rate="100/h")
    assert row.published() == PublishedTier("gold", None, 2.5, "priority", 10, "100/h")


@pytest.mark.parametrize("model", [Tier, TenantTier, QueueLimit, LimitOverride])
def test_every_field_has_a_help_text_with_an_example(model):
    fields = [field for field in model._meta.fields if not isinstance(field, models.BigAutoField)]
    assert fields
    for field in fields:
        assert "for example" in field.help_text.lower(), field.name


def test_the_migrations_say_what_the_models_say():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
