"""The tenant in a header or property that a producer has chosen itself."""

from __future__ import annotations

import pytest

from celery_fairness.message.headers import parse_header
from celery_fairness.message.tenant_header import carried_header

NAMES = ("x-tenant-id", "app_id")


@pytest.mark.parametrize(
    ("headers", "properties", "tenant", "name"),
    [
        ({"x-tenant-id": "42"}, {}, "42", "x-tenant-id"),
        ({"x-tenant-id": 42}, {}, "42", "x-tenant-id"),
        ({}, {"app_id": "7"}, "7", "app_id"),
        ({}, {"x-tenant-id": "7"}, "7", "x-tenant-id"),
        ({"app_id": "7"}, {"x-tenant-id": "42"}, "42", "x-tenant-id"),
        ({"x-tenant-id": "42"}, {"x-tenant-id": "7"}, "42", "x-tenant-id"),
        ({"x-tenant-id": "", "app_id": "7"}, {}, "7", "app_id"),
        ({"x-tenant-id": None}, {"x-tenant-id": "7"}, "7", "x-tenant-id"),
    ],
)
def test_the_first_name_with_a_value_has_the_tenant(headers, properties, tenant, name):
    made = carried_header(headers, properties, NAMES, service="analysis")
    assert parse_header(made).tenant == tenant
    assert (made["tenant_from"], made["service"]) == (name, "analysis")


@pytest.mark.parametrize("value", [4.2, True, b"42", ["42"], {"id": 42}, "x" * 201, "\ud800"])
def test_a_value_that_cannot_be_a_tenant_is_invalid_and_hides_the_later_names(value):
    made = carried_header({"x-tenant-id": value, "app_id": "7"}, {"app_id": "7"}, NAMES)
    assert parse_header(made).tenant is None
    assert parse_header(made).invalid.startswith("x-tenant-id: expected ")
    assert made["tenant_from"] == "x-tenant-id"


@pytest.mark.parametrize("given", [{"v": 1, "tenant": "7"}, {"v": 1}, None, "nonsense"])
def test_the_header_of_this_package_wins(given):
    assert carried_header({"fairness": given, "x-tenant-id": "42"}, {}, NAMES) is None


@pytest.mark.parametrize(
    ("headers", "names"),
    [({}, NAMES), ({"x-tenant-id": ""}, NAMES), ({"X-Tenant-Id": "42"}, NAMES), ({"": "4"}, ())],
)
def test_without_such_a_value_there_is_none(headers, names):
    assert carried_header(headers, {}, names) is None
