from __future__ import annotations

import pytest
from celery.signals import import_modules
from django.core.checks import run_checks
from django_celery_fairness.models import Tier
from django_celery_fairness.resolver import tier_of

from celery_fairness import FairTask
from tests.support.parts import parts_of

pytestmark = pytest.mark.django_db


def found(database: bool = False) -> dict[str, str]:
    """Return the text of this app's messages by their id. A check may have several messages."""
    texts: dict[str, str] = {}
    for message in run_checks(databases=["default"] if database else None):
        if message.id and message.id.startswith("celery_fairness"):
            before = texts.get(message.id, "")
            texts[message.id] = f"{before} {message.msg} {message.hint}".strip()
    return texts


def test_a_project_that_is_set_up_has_nothing_to_hear(wire):
    wire()
    assert found(database=True) == {}
    wire(tier_resolver=tier_of)
    assert found(database=True) == {}


def test_without_fairness_it_says_the_line_to_add(unwired, settings):
    settings.CELERY_FAIRNESS = {"tier_resolver": "django_celery_fairness.resolver:tier_of"}
    messages = found()
    assert list(messages) == ["celery_fairness.W001"]
    assert "fairness = Fairness(app)" in messages["celery_fairness.W001"]


@pytest.mark.parametrize("resolver", [None, "shop.plans:tier_of", lambda tenant: None])
def test_another_resolver_is_told_the_line_to_add(wire, resolver):
    wire(tier_resolver=resolver)
    messages = found()
    assert list(messages) == ["celery_fairness.W002"]
    text = messages["celery_fairness.W002"]
    assert "'tier_resolver': 'django_celery_fairness.resolver:tier_of'" in text


@pytest.mark.parametrize(
    ("variable", "tier", "says", "stored"),
    [
        ("FAIRNESS_PRO_LIMIT", "pro", "7", "3"),
        ("FAIRNESS_FREE_LIMIT", "free", "unlimited", "1"),
        ("FAIRNESS_ENTERPRISE_LIMIT", "enterprise", "0", "5"),
        ("FAIRNESS_PRO_PLUS_LIMIT", "pro_plus", "12", "3"),
    ],
)
def test_a_variable_that_says_otherwise_is_named_with_both_numbers(
    wire, monkeypatch, variable, tier, says, stored
):
    monkeypatch.setenv(variable, says)
    wire()
    assert found() == {}
    messages = found(database=True)
    assert list(messages) == ["celery_fairness.W003"]
    text = messages["celery_fairness.W003"]
    assert f"{variable} is {says}" in text
    assert f"'{tier}' in the database has {stored}" in text


def test_a_variable_that_says_the_same_is_no_matter(wire, monkeypatch):
    monkeypatch.setenv("FAIRNESS_PRO_LIMIT", "3")
    wire()
    assert found(database=True) == {}


def test_a_tier_that_only_the_settings_have_is_named(wire):
    wire(tiers={"gold": {"concurrency": 9}})
    messages = found(database=True)
    assert list(messages) == ["celery_fairness.W004"]
    assert "'gold'" in messages["celery_fairness.W004"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"snooze_seconds": -1}, "snooze_seconds"),
        ({"default_tier": "none"}, "default_tier"),
        ({"enabeld": True}, "did you mean 'enabled'"),
        ({"tiers": {"pro": {"concurrency": -1}}}, "pro: concurrency"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_an_error_that_names_it(unwired, settings, given, names):
    settings.CELERY_FAIRNESS = given
    messages = found(database=True)
    assert names in messages["celery_fairness.E001"]


def test_so_is_a_variable(unwired, monkeypatch):
    monkeypatch.setenv("FAIRNESS_PRO_LIMIT", "many")
    assert "FAIRNESS_PRO_LIMIT" in found(database=True)["celery_fairness.E001"]


def found_before_a_deployment() -> dict[str, str]:
    """Return hints of ``check --deploy`` by their id."""
    messages = run_checks(include_deployment_checks=True)
    return {
        str(each.id): str(each.hint)
        for each in messages
        if str(each.id).startswith("celery_fairness.")
    }


def test_times_without_a_time_zone_are_an_error(wire, settings):
    wire()
    settings.USE_TZ = False
    messages = found()
    assert list(messages) == ["celery_fairness.E002"]
    assert "USE_TZ = True" in messages["celery_fairness.E002"]


def test_a_check_before_a_deployment_finds_what_doctor_finds(wire, redis_url, redis_server):
    wire(f"fair{redis_url}", redis_lost="open")
    with redis_server.client() as server:
        server.config_set("maxmemory-policy", "allkeys-lru")
        messages = found_before_a_deployment()
        server.config_set("maxmemory-policy", "noeviction")
    assert messages.pop("celery_fairness.eviction").startswith("run CONFIG SET maxmemory-policy")
    assert messages.pop("celery_fairness.ignored") == "unset it"
    assert "celery_fairness.eviction" not in found_before_a_deployment()
    assert found() == {}


def test_a_check_before_a_deployment_without_redis_has_the_settings_alone(wire):
    wire("fairredis://127.0.0.1:1/0", redis_lost="open")
    assert list(found_before_a_deployment()) == ["celery_fairness.ignored"]


def test_a_check_before_a_deployment_sees_tasks_that_nothing_imported(wire, redis_url):
    app = parts_of(wire(f"fair{redis_url}", tier_resolver=None)).app

    def load(sender, **_):
        if sender is app:

            @app.task(name="suite.report", base=FairTask, tenant="user")
            def report(user):
                """Do nothing."""

    import_modules.connect(load)
    try:
        assert "celery_fairness.tiers" in found_before_a_deployment()
    finally:
        import_modules.disconnect(load)


def test_a_check_before_a_deployment_bears_a_project_that_is_not_set_up(unwired):
    assert set(found_before_a_deployment()) == {"celery_fairness.W001"}


def test_a_database_without_tables_is_no_error(wire, monkeypatch):
    wire()
    monkeypatch.setattr(Tier._meta, "db_table", "not_migrated_yet")
    assert found(database=True) == {}
