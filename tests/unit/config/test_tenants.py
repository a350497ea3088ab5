"""Which values are tenants, and that no two tenants ever share a key."""

from __future__ import annotations

import enum
import re
from collections import OrderedDict
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_fairness.config.tenants import (
    INVALID,
    KEY_PATTERN,
    NONE,
    Reserved,
    id_part,
    key_part,
    normalise,
    tier_key,
)
from celery_fairness.errors import TenantInvalid
from celery_fairness.store.keys import Names
from tests.support.services import examples


class Plan(enum.StrEnum):
    TEAM = "team-7"


class Shouting(str):
    """A str that lies about itself."""

    def __str__(self):
        return "SOMEBODY ELSE"


@pytest.mark.parametrize(
    ("value", "tenant"),
    [
        ("42", "42"),
        (42, "42"),
        (0, "0"),
        (-7, "-7"),
        (2**80, "1208925819614629174706176"),
        (UUID("12345678123456781234567812345678"), "12345678-1234-5678-1234-567812345678"),
        ("Größe", "Größe"),
        ("🦔", "🦔"),
        (" 42 ", " 42 "),
        ("a\nb", "a\nb"),
        ("a\x00b", "a\x00b"),
        ("{fairness}:tiers", "{fairness}:tiers"),
        ("x" * 200, "x" * 200),
        ("ü" * 100, "ü" * 100),
        ("🦔" * 50, "🦔" * 50),
        (Plan.TEAM, "team-7"),
        (Shouting("me"), "me"),
        ("_none", "_none"),
        ("None", "None"),
        ("0", "0"),
    ],
)
def test_text_whole_numbers_and_uuids_are_tenants(value, tenant):
    found = normalise(value)
    assert found == tenant
    assert type(found) is str


@pytest.mark.parametrize("value", [None, ""])
def test_none_and_no_text_mean_no_tenant(value):
    assert normalise(value) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (True, "expected str, int or UUID, got: bool"),
        (False, "expected str, int or UUID, got: bool"),
        (4.0, "expected str, int or UUID, got: float"),
        (0.0, "expected str, int or UUID, got: float"),
        (float("nan"), "expected str, int or UUID, got: float"),
        (Decimal(4), "expected str, int or UUID, got: Decimal"),
        (b"42", "expected str, int or UUID, got: bytes"),
        (bytearray(b"42"), "expected str, int or UUID, got: bytearray"),
        ([], "expected str, int or UUID, got: list"),
        (["42"], "expected str, int or UUID, got: list"),
        ((), "expected str, int or UUID, got: tuple"),
        ({"id": 42}, "expected str, int or UUID, got: dict"),
        (OrderedDict(), "expected str, int or UUID, got: OrderedDict"),
        ({42}, "expected str, int or UUID, got: set"),
        (object(), "expected str, int or UUID, got: object"),
        (str, "expected str, int or UUID, got: type"),
        ("x" * 201, "expected at most 200 bytes, got: 201"),
        ("ü" * 101, "expected at most 200 bytes, got: 202"),
        ("🦔" * 51, "expected at most 200 bytes, got: 204"),
        ("x" * 1_000_000, "expected at most 200 bytes, got: 1000000"),
        (10**200, "expected at most 200 bytes, got: 201"),
        ("\ud800", "expected text that is valid UTF-8, got: lone surrogates"),
        ("ok\udfff", "expected text that is valid UTF-8, got: lone surrogates"),
    ],
)
def test_anything_else_is_rejected_and_not_shown(value, problem):
    with pytest.raises(TenantInvalid) as caught:
        normalise(value)
    assert caught.value.problem == problem
    assert str(caught.value) == f"tenant: {problem}"


@pytest.mark.parametrize(
    "tenant",
    ["42", "a", "A.b_c:d-e", "0" * 120, "user:42", "12345678-1234-5678", "h", "hh_x", "H_1"],
)
def test_a_plain_tenant_stands_in_keys_as_it_is(tenant):
    assert key_part(tenant) == tenant
    assert tier_key(tenant) == f"tenant:{tenant}"
    assert tier_key(tenant, "analysis") == f"tenant:{tenant}:analysis"


@pytest.mark.parametrize(
    "tenant",
    [
        "h_",
        "h_42",
        "h_" + "0" * 32,
        "0" * 121,
        "_none",
        "_invalid",
        "-42",
        ":42",
        ".",
        "a b",
        "a\n",
        "a\nb",
        "a\x00",
        "{42}",
        "}{",
        "Größe",
        "🦔",
        "٣",
        "a/b",
        "*",
    ],
)
def test_any_other_tenant_is_hashed(tenant):
    assert re.fullmatch(r"h_[0-9a-f]{32}", key_part(tenant))


def test_the_hash_is_the_published_rule():
    # Written out, because other languages write the same keys.
    assert key_part("{42}") == "h_0c6a880d5918298b9c3c4093ab8d128d"
    assert key_part("Größe") == "h_aedc3f80989a6546962705852b2f4a48"


@pytest.mark.parametrize("reserved", [NONE, INVALID])
def test_nobody_can_spell_a_reserved_tenant(reserved):
    spelled = normalise(str(reserved))
    assert tier_key(reserved) == f"tenant:{reserved}"
    assert tier_key(spelled) != tier_key(reserved)
    # Not even with the reserved object itself: what comes from outside is made plain text.
    assert not isinstance(normalise(reserved), Reserved)
    names = Names("fairness")
    assert names.tenant(spelled) != names.tenant(reserved)


hostile = st.one_of(
    st.text(max_size=60),
    st.text("h_0123456789abcdef", max_size=40),
    st.text("{}:_*\n\x00 ab", max_size=12),
    st.sampled_from(["_none", "_invalid", "h_", "42", "tenant:42", "42:analysis"]),
    st.integers(0, 200).map(lambda n: "x" * n),
)


@given(hostile, hostile)
@settings(max_examples=examples(400))
def test_two_different_tenants_never_share_a_key(one, other):
    try:
        one, other = normalise(one), normalise(other)
    except TenantInvalid:
        return
    if one is None or other is None:
        return
    names = Names("fairness")
    assert (key_part(one) == key_part(other)) == (one == other)
    assert (names.tenant(one) == names.tenant(other)) == (one == other)
    for reserved in (NONE, INVALID):
        assert tier_key(one) != tier_key(reserved)


@given(hostile)
@settings(max_examples=examples(200))
def test_a_key_is_always_one_that_the_open_job_spec_allows(tenant):
    try:
        tenant = normalise(tenant)
    except TenantInvalid:
        return
    if tenant is not None:
        assert KEY_PATTERN.fullmatch(tier_key(tenant, "analysis"))
        assert len(tier_key(tenant)) <= 255


@given(hostile, hostile, st.sampled_from(["a", "b"]), st.sampled_from(["a", "b"]))
@settings(max_examples=examples(200))
def test_services_of_one_tenant_are_apart(one, other, first, second):
    try:
        one, other = normalise(one), normalise(other)
    except TenantInvalid:
        return
    if one is not None and other is not None:
        same = (one, first) == (other, second)
        assert (tier_key(one, first) == tier_key(other, second)) == same


@pytest.mark.parametrize(
    ("text", "part"),
    [("", ""), ("t1", "t1"), ("t 1", key_part("t 1")), ("t\ud800", key_part("t?"))],
)
def test_any_id_of_a_task_has_a_form_for_keys(text, part):
    assert id_part(text) == part
