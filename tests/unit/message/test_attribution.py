"""To which tenant a message is attributed when it arrives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.settings import build_settings
from celery_fairness.config.tenants import INVALID, NONE, Reserved, key_part
from celery_fairness.message.attribution import Attribution, attribution_of
from celery_fairness.message.task_options import TenantSource

SOURCE = TenantSource("shop.t", "user", lambda user=None: None)


def attribution(headers=None, kwargs=None, source=SOURCE, service=None, **settings):
    given = {} if headers is None else {"fairness": headers}
    task = SimpleNamespace(tenant_source=source, service=service)
    return attribution_of(given, (), kwargs or {}, task, build_settings(settings))


def test_the_header_counts_and_not_the_arguments():
    header = {"v": 1, "tenant": "42", "tier": "pro"}
    assert attribution(header, {"user": "7"}) == Attribution("42", "tenant:42", "pro")


def test_without_a_header_the_arguments_count():
    assert attribution(None, {"user": 7}) == Attribution("7", "tenant:7")


def test_a_header_without_a_tenant_is_a_system_task_whatever_the_arguments_say():
    assert attribution({"v": 1}, {"user": "7"}) == Attribution(None)


def test_a_task_that_declares_no_tenant_is_a_system_task():
    assert attribution(None, {"user": "7"}, source=None) == Attribution(None)


@pytest.mark.parametrize("no_tenant", ["shared", "error"])
def test_tasks_without_a_tenant_can_be_one_tenant(no_tenant):
    # With "error" the producer raises; what arrives all the same is shared.
    found = attribution({"v": 1}, no_tenant=no_tenant)
    assert found == Attribution(NONE, "tenant:_none")
    assert isinstance(found.tenant, Reserved)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("no object", "header 'fairness': expected an object, got: str"),
        (None, "header 'fairness': expected an object, got: NoneType"),
        ({"v": 2, "tenant": "42"}, "header 'fairness': v: expected 1, got: 2"),
        ({"tenant": "42"}, "header 'fairness': v: expected 1, got: None"),
        (
            {"v": 1, "tenant": True},
            "header 'fairness': tenant: expected str, int or UUID, got: bool",
        ),
        ({"v": 1, "tenant": "42", "cost": "1"}, "header 'fairness': cost: expected"),
        ({"v": 1, "invalid": "the producer could not say"}, "the producer could not say"),
        ({"v": 1, "tenant": "42", "invalid": "no"}, "no"),
    ],
)
@pytest.mark.parametrize("no_tenant", ["bypass", "shared"])
def test_a_header_that_cannot_be_read_is_charged_and_not_bypassed(header, problem, no_tenant):
    settings = build_settings({"no_tenant": no_tenant})
    task = SimpleNamespace(tenant_source=SOURCE, service=None)
    found = attribution_of({"fairness": header}, (), {"user": "42"}, task, settings)
    assert (found.tenant, found.key) == (INVALID, "tenant:_invalid")
    assert isinstance(found.tenant, Reserved)
    assert found.problem.startswith(problem)


def test_an_argument_that_is_no_tenant_is_charged_and_not_bypassed():
    found = attribution(None, {"user": 4.2})
    assert found.tenant is INVALID
    assert found.problem == (
        "task shop.t: tenant from 'user': expected str, int or UUID, got: float"
    )


def test_a_user_who_is_called_like_a_reserved_tenant_is_somebody_else():
    found = attribution({"v": 1, "tenant": "_invalid"})
    assert found.key == f"tenant:{key_part('_invalid')}"
    assert not isinstance(found.tenant, Reserved)


@pytest.mark.parametrize(
    ("header_service", "task_service", "key"),
    [
        ("analysis", "specview", "tenant:42:analysis"),
        ("analysis", None, "tenant:42:analysis"),
        (None, "specview", "tenant:42:specview"),
        (None, None, "tenant:42:_"),
    ],
)
def test_services_count_apart_where_the_scope_says_so(header_service, task_service, key):
    header = {"v": 1, "tenant": "42", "service": header_service}
    assert attribution(header, service=task_service, tier_scope="service").key == key
    assert attribution(header, service=task_service).key == "tenant:42"


def test_no_tenant_has_the_key_of_another_in_a_service():
    one = attribution({"v": 1, "tenant": "a:b"}, tier_scope="service")
    other = attribution({"v": 1, "tenant": "a", "service": "b"}, tier_scope="service")
    assert (one.key, other.key) == ("tenant:a:b:_", "tenant:a:b")


def test_reserved_tenants_count_apart_by_service_too():
    assert attribution("nonsense", service="analysis", tier_scope="service").key == (
        "tenant:_invalid:analysis"
    )


def test_a_charge_names_each_of_its_keys_once_and_its_tiers_first():
    limits = (Limit("api", concurrency=5), Limit("tenant:42", concurrency=1))
    assert Attribution("42", "tenant:42", limits=limits).keys == "tenant:42,api"
    assert Attribution(None, limits=limits[:1]).keys == "api"
    assert Attribution(None).keys == ""
