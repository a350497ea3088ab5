from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django_celery_fairness.models import TenantTier, Tier

from celery_fairness.errors import SettingsError

pytestmark = pytest.mark.django_db(transaction=True)

APP = "django_celery_fairness"
TABLES = "0001_initial"
NEWEST = MigrationLoader(None).graph.leaf_nodes(APP)[0][1]


@pytest.fixture(autouse=True)
def as_before():
    yield
    go_to(TABLES)
    Tier.objects.all()._raw_delete("default")
    go_to(NEWEST)


def go_to(name: str) -> None:
    MigrationExecutor(connection).migrate([(APP, name)])


def again() -> dict[str, int | None]:
    go_to(TABLES)
    go_to(NEWEST)
    return numbers()


def numbers() -> dict[str, int | None]:
    return dict(Tier.objects.values_list("name", "concurrency"))


def test_it_makes_the_four_tiers_of_the_adr(wire):
    wire()
    assert again() == {"free": 1, "pro": 3, "pro_plus": 3, "enterprise": 5}
    classes = dict(Tier.objects.values_list("name", "queue_class"))
    assert classes == {
        "free": "default",
        "pro": "priority",
        "pro_plus": "priority",
        "enterprise": "priority",
    }


def test_variables_and_settings_of_the_moment_are_what_is_stored(wire, monkeypatch):
    monkeypatch.setenv("FAIRNESS_PRO_LIMIT", "7")
    monkeypatch.setenv("FAIRNESS_ENTERPRISE_LIMIT", "unlimited")
    wire(tiers={"gold": {"concurrency": 9, "weight": 2.0}, "free": {"concurrency": 2}})
    go_to(TABLES)
    Tier.objects.all()._raw_delete("default")
    go_to(NEWEST)
    assert numbers() == {"free": 2, "pro": 7, "pro_plus": 3, "enterprise": None, "gold": 9}
    assert Tier.objects.get(name="gold").weight == 2.0


def test_how_much_may_wait_is_filled_once_from_the_settings(wire):
    wire(tiers={"free": {"max_waiting": 500}, "pro": {"max_waiting": 600}})
    go_to(TABLES)
    Tier.objects.all()._raw_delete("default")
    go_to(NEWEST)
    bounds = dict(Tier.objects.values_list("name", "max_waiting"))
    assert bounds == {"free": 500, "pro": 600, "pro_plus": None, "enterprise": None}
    Tier.objects.filter(name="free").update(max_waiting=9)
    call_command("migrate", APP, verbosity=0)
    assert Tier.objects.get(name="free").max_waiting == 9


def test_the_rates_of_tiers_are_filled_once_from_the_settings(wire):
    wire(tiers={"free": {"rate": "100/h"}, "pro": {"rate": "5/s", "throttle": "60/m"}})
    go_to(TABLES)
    Tier.objects.all()._raw_delete("default")
    go_to(NEWEST)
    rates = {name: both for name, *both in Tier.objects.values_list("name", "rate", "throttle")}
    nothing: dict[str, list[str]] = {"pro_plus": ["", ""], "enterprise": ["", ""]}
    assert rates == {"free": ["100/PT1H", ""], "pro": ["5/PT1S", "60/PT1M"], **nothing}


def test_settings_count_before_fairness_is_wired(unwired, settings, monkeypatch):
    settings.CELERY_FAIRNESS = {"tiers": {"pro": {"concurrency": 4}}}
    monkeypatch.setenv("FAIRNESS_FREE_LIMIT", "2")
    go_to(TABLES)
    Tier.objects.all()._raw_delete("default")
    go_to(NEWEST)
    assert numbers() == {"free": 2, "pro": 4, "pro_plus": 3, "enterprise": 5}


def test_a_setting_that_cannot_be_meant_stops_the_migration(unwired, monkeypatch):
    go_to(TABLES)
    monkeypatch.setenv("FAIRNESS_FREE_LIMIT", "-1")
    with pytest.raises(SettingsError, match="FAIRNESS_FREE_LIMIT"):
        go_to(NEWEST)
    monkeypatch.undo()


def test_forwards_again_leaves_what_a_person_changed(wire):
    wire()
    again()
    Tier.objects.filter(name="pro").update(concurrency=8)
    assert again()["pro"] == 8


def test_backwards_removes_what_nobody_touched(wire):
    wire()
    again()
    Tier.objects.filter(name="pro").update(concurrency=8)
    TenantTier.objects.create(tenant="42", tier=Tier.objects.get(name="enterprise"))
    go_to(TABLES)
    assert numbers() == {"pro": 8, "enterprise": 5}
    go_to(NEWEST)
    TenantTier.objects.all().delete()


def test_the_whole_app_can_be_taken_out_and_put_back(wire):
    wire()
    call_command("migrate", APP, "zero", verbosity=0)
    assert not [t for t in connection.introspection.table_names() if t.startswith(APP)]
    call_command("migrate", APP, verbosity=0)
    assert set(numbers()) == {"free", "pro", "pro_plus", "enterprise"}
