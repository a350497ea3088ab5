"""The header that a message gets: who is charged, as the producer knows it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_fairness.config.settings import build_settings
from celery_fairness.errors import TenantInvalid, TenantMissing
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.message.headers import BEAT_HEADER
from celery_fairness.message.stamp import Message, Stamp
from celery_fairness.message.task_options import TenantSource
from tests.support.answering_limiter import AnsweringLimiter

BARE = {"v": 1, "scheduled": False, "cost": 1}


@pytest.fixture
def make(notices, clock):
    def make_stamp(**settings):
        values = build_settings(settings)
        tier_cache = TierCache(values, AnsweringLimiter, notices, clock)
        return Stamp(values, tier_cache, notices)

    return make_stamp


def fair(tenant="user", **options):
    source = TenantSource("shop.t", tenant, lambda user=None: None) if tenant else None
    return SimpleNamespace(
        tenant_source=source, **{"service": None, "scheduled": False, "cost": 1, **options}
    )


def test_a_declared_tenant_is_stamped_with_its_tier(make):
    stamp = make(tier_resolver=lambda tenant: "pro")
    header = stamp.header(Message("shop.t", fair(service="analysis"), {}, (), {"user": 42}))
    assert header == {
        "v": 1,
        "tenant": "42",
        "tier": "pro",
        "service": "analysis",
        "scheduled": False,
        "cost": 1,
    }


def test_a_fair_task_without_a_tenant_is_a_system_task(make):
    assert make().header(Message("shop.t", fair(), {}, (), {})) == BARE
    assert make().header(Message("shop.t", fair(None), {}, (), {"user": "42"})) == BARE


@pytest.mark.parametrize("task", [None, SimpleNamespace(name="shop.plain")])
def test_another_task_gets_no_header(make, task):
    assert make().header(Message("shop.plain", task, {}, (), {"user": "42"})) is None


@pytest.mark.parametrize("task", [None, SimpleNamespace(), fair(None)])
def test_a_task_that_declares_no_tenant_is_charged_to_the_one_that_sends_it(make, task):
    parent = {"fairness": {"v": 1, "tenant": "42", "tier": "enterprise"}}
    header = make().header(Message("shop.t", task, {}, (), {}, parent))
    assert (header["tenant"], header["tier"]) == ("42", "free")


def test_a_declared_tenant_wins_over_the_parents_and_an_empty_one_does_not(make):
    parent = {"fairness": {"v": 1, "tenant": "42"}}
    assert make().header(Message("shop.t", fair(), {}, ("7",), {}, parent))["tenant"] == "7"
    assert make().header(Message("shop.t", fair(), {}, (), {}, parent))["tenant"] == "42"


@pytest.mark.parametrize("parent", [None, {}, {"fairness": {"v": 1}}])
def test_a_parent_without_a_tenant_gives_nothing(make, parent):
    assert make().header(Message("shop.t", fair(None), {}, (), {}, parent)) == BARE


@pytest.mark.parametrize("parent", [None, "nonsense", {"v": 2}, {"v": 1, "invalid": "float"}])
@pytest.mark.parametrize("task", [None, fair(None), fair()])
def test_the_child_of_an_invalid_tenants_task_is_invalid_and_does_not_run_unlimited(
    make, task, parent
):
    stamp = make(no_tenant="error")
    message = Message("shop.t", task, {}, (), {}, {"fairness": parent})
    assert stamp.header(message, strict=True)["invalid"] == (
        "the task that sends it has no valid tenant"
    )
    with_own = message._replace(headers={"fairness": {"v": 1, "tenant": "7"}})
    assert stamp.header(with_own, strict=True)["tenant"] == "7"


def test_a_declared_tenant_and_a_valid_one_beside_an_invalid_limit_are_valid(make):
    message = Message("shop.t", fair(), {}, ("7",), {}, {"fairness": {"v": 2}})
    assert make().header(message)["tenant"] == "7"
    parent = {"fairness": {"v": 1, "tenant": "42", "invalid": "key 'a' has no value"}}
    assert make().header(message._replace(args=(), parent=parent))["tenant"] == "42"


def test_a_header_of_the_callers_own_wins_over_the_arguments_and_has_the_tier(make):
    stamp = make(tenant_header=["x-tenant"], tier_resolver=lambda tenant: "pro", no_tenant="error")
    message = Message("shop.t", fair(), {"x-tenant": "42"}, ("7",), {}, {"fairness": {"v": 1}})
    header = {**BARE, "tenant": "42", "tier": "pro", "tenant_from": "x-tenant"}
    assert stamp.header(message, strict=True) == header
    in_property = message._replace(headers={}, properties={"x-tenant": "42"}, task=None)
    assert stamp.header(in_property, strict=True) == header
    invalid = stamp.header(message._replace(headers={"x-tenant": 4.2}), strict=True)
    assert (invalid.get("tenant"), invalid["invalid"][:18]) == (None, "x-tenant: expected")
    of_celery = message._replace(name="celery.chord_unlock")
    assert stamp.header(of_celery) is None


def test_an_explicit_header_wins_and_is_kept_whole(make):
    stamp = make(tier_resolver=lambda tenant: "pro")
    given = {"v": 1, "tenant": "7", "tier": "enterprise", "colour": "red"}
    header = stamp.header(Message("shop.t", fair(), {"fairness": given}, ("42",), {}))
    assert header == {"v": 1, "tenant": "7", "tier": "pro", "colour": "red"}
    assert given["tier"] == "enterprise"


def test_an_explicit_tier_counts_while_nothing_better_is_known(make):
    given = {"v": 1, "tenant": "7", "tier": "enterprise"}
    assert make().header(Message("other.t", None, {"fairness": given}, (), {})) == given


def test_an_explicit_header_without_a_tenant_is_left_as_it_is(make):
    given = {"v": 1, "scheduled": True}
    assert make().header(Message("shop.t", fair(), {"fairness": given}, ("42",), {})) is given


@pytest.mark.parametrize("given", ["nonsense", {"v": 7}, {"v": 1, "tenant": 4.2}, [], 3])
def test_an_explicit_header_that_cannot_be_read_is_sent_and_logged(make, caplog, given):
    header = make().header(Message("shop.t", fair(), {"fairness": given}, ("42",), {}), strict=True)
    assert header is given
    assert "task shop.t: header 'fairness': " in caplog.text


def test_a_wrong_tenant_is_the_callers_error(make):
    with pytest.raises(TenantInvalid) as caught:
        make().header(Message("shop.t", fair(), {}, (4.2,), {}), strict=True)
    assert str(caught.value) == (
        "task shop.t: tenant from 'user': expected str, int or UUID, got: float"
    )


def test_a_wrong_tenant_that_nobody_can_be_told_of_is_stamped_invalid_and_logged(make, caplog):
    header = make().header(Message("shop.t", fair(), {}, (4.2,), {}))
    assert header == {**BARE, "invalid": "expected str, int or UUID, got: float"}
    assert "task shop.t: tenant from 'user': expected str, int or UUID" in caplog.text


def test_what_made_a_tenant_invalid_is_cut(make):
    def raising(args, kwargs):
        raise ValueError("x" * 10_000)

    assert len(make().header(Message("shop.t", fair(raising), {}, (), {}))["invalid"]) == 200


def test_a_missing_tenant_is_an_error_where_the_settings_say_so(make):
    stamp = make(no_tenant="error")
    for tenant in (None, ""):
        with pytest.raises(TenantMissing) as caught:
            stamp.header(Message("shop.t", fair(), {}, (tenant,), {}), strict=True)
        assert caught.value.task == "shop.t"
    assert stamp.header(Message("shop.t", fair(), {}, (), {})) == BARE
    assert stamp.header(Message("shop.t", fair(), {}, ("42",), {}), strict=True)["tenant"] == "42"


@pytest.mark.parametrize("no_tenant", ["bypass", "shared"])
def test_a_missing_tenant_is_no_error_otherwise(make, no_tenant):
    assert (
        make(no_tenant=no_tenant).header(Message("shop.t", fair(), {}, (), {}), strict=True) == BARE
    )


def test_a_plain_task_is_never_asked_for_a_tenant(make):
    task = SimpleNamespace(name="shop.plain")
    assert (
        make(no_tenant="error").header(Message("shop.plain", task, {}, (), {}), strict=True) is None
    )


@pytest.mark.parametrize(
    ("task", "headers"), [(fair(scheduled=True), {}), (fair(), {BEAT_HEADER: True})]
)
def test_beat_and_a_declaration_make_a_task_scheduled(make, task, headers):
    header = make(no_tenant="error").header(Message("shop.t", task, headers, (), {}), strict=True)
    assert header == {**BARE, "scheduled": True}


@pytest.mark.parametrize("name", ["celery.chord_unlock", "celery.backend_cleanup", "celery.map"])
def test_celerys_own_tasks_are_left_alone(make, name):
    parent = {"fairness": {"v": 1, "tenant": "42"}}
    assert make().header(Message(name, fair(None), {}, ("42",), {}, parent)) is None


def test_nothing_is_written_into_what_was_given(make):
    headers, kwargs = {"other": 1}, {"user": "42"}
    make().header(Message("shop.t", fair(), headers, (), kwargs))
    assert (headers, kwargs) == ({"other": 1}, {"user": "42"})
