"""The headers on the wire: what is written is read back, and what is malformed is named."""

from __future__ import annotations

import json
import math
from uuid import UUID

import pytest
from celery.app.task import Context
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_fairness.errors import HeaderInvalid
from celery_fairness.message.headers import (
    HEADER_BYTES,
    Copy,
    Header,
    first_copy,
    headers_of,
    new_serial,
    parse_copy,
    parse_header,
)
from tests.support.services import examples

NAME = "expected 1 to 100 letters, digits, '_' or '-'"

names = st.none() | st.text("abcXYZ019_-", min_size=1, max_size=20)
headers = st.builds(
    Header,
    tenant=st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50),
    tier=names,
    service=names,
    scheduled=st.booleans(),
    cost=st.integers(1, 1_000_000) | st.floats(1e-6, 1e6),
    invalid=st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
)


@given(headers)
@settings(max_examples=examples(200))
def test_what_is_written_is_read_back_through_json(header):
    assert parse_header(json.loads(json.dumps(header.to_wire()))) == header


def test_the_documented_example_is_what_is_written():
    written = Header("42", "pro", "analysis").to_wire()
    assert written == {
        "v": 1,
        "tenant": "42",
        "tier": "pro",
        "service": "analysis",
        "scheduled": False,
        "cost": 1,
    }
    assert list(Header().to_wire()) == ["v", "scheduled", "cost"]


def test_every_field_but_the_version_may_be_missing():
    assert parse_header({"v": 1}) == Header()
    assert parse_header({"v": 1, "tenant": None, "tier": None, "service": None}) == Header()


@pytest.mark.parametrize(
    ("value", "tenant"),
    [("42", "42"), (42, "42"), ("", None), (UUID(int=7), str(UUID(int=7))), ("_none", "_none")],
)
def test_a_tenant_is_read_as_a_producers_would_be(value, tenant):
    assert parse_header({"v": 1, "tenant": value}).tenant == tenant


MALFORMED = [
    (None, "expected an object, got: NoneType"),
    ("42", "expected an object, got: str"),
    (["v", 1], "expected an object, got: list"),
    (42, "expected an object, got: int"),
    (b"{}", "expected an object, got: bytes"),
    ({}, "v: expected 1, got: None"),
    ({"v": None}, "v: expected 1, got: None"),
    ({"v": "1"}, "v: expected 1, got: '1'"),
    ({"v": 1.0}, "v: expected 1, got: 1.0"),
    ({"v": True}, "v: expected 1, got: True"),
    ({"v": 0}, "v: expected 1, got: 0"),
    ({"v": 2}, "v: expected 1, got: 2"),
    ({"tenant": True}, "tenant: expected str, int or UUID, got: bool"),
    ({"tenant": 4.0}, "tenant: expected str, int or UUID, got: float"),
    ({"tenant": ["42"]}, "tenant: expected str, int or UUID, got: list"),
    ({"tenant": {}}, "tenant: expected str, int or UUID, got: dict"),
    ({"tenant": "x" * 201}, "tenant: expected at most 200 bytes, got: 201"),
    (
        {"tenant": "\ud800"},
        "tenant: expected text that is valid UTF-8, got: lone surrogates",
    ),
    ({"tier": ""}, f"tier: {NAME}, got: ''"),
    ({"tier": 3}, f"tier: {NAME}, got: 3"),
    ({"tier": "a b"}, f"tier: {NAME}, got: 'a b'"),
    ({"tier": ["pro"]}, f"tier: {NAME}, got: ['pro']"),
    ({"service": ""}, f"service: {NAME}, got: ''"),
    ({"service": 3}, f"service: {NAME}, got: 3"),
    ({"service": "a.b"}, f"service: {NAME}, got: 'a.b'"),
    ({"service": "s" * 101}, f"service: {NAME}, got: '{'s' * 78}…"),
    ({"scheduled": None}, "scheduled: expected true or false, got: None"),
    ({"scheduled": 1}, "scheduled: expected true or false, got: 1"),
    ({"scheduled": "false"}, "scheduled: expected true or false, got: 'false'"),
    ({"cost": 0}, "cost: expected a number above 0, up to 1000000, got: 0"),
    ({"cost": -1}, "cost: expected a number above 0, up to 1000000, got: -1"),
    ({"cost": 1_000_001}, "cost: expected a number above 0, up to 1000000, got: 1000001"),
    ({"cost": True}, "cost: expected a number above 0, up to 1000000, got: True"),
    ({"cost": "1"}, "cost: expected a number above 0, up to 1000000, got: '1'"),
    ({"cost": None}, "cost: expected a number above 0, up to 1000000, got: None"),
    ({"cost": math.nan}, "cost: expected a number above 0, up to 1000000, got: nan"),
    ({"cost": math.inf}, "cost: expected a number above 0, up to 1000000, got: inf"),
    ({"invalid": 3}, "invalid: expected text, got: 3"),
    ({"invalid": None}, "invalid: expected text, got: None"),
    ({"more": {1, 2}}, "expected fields that JSON can hold"),
    ({"more": object()}, "expected fields that JSON can hold"),
]


@pytest.mark.parametrize(("value", "problem"), MALFORMED)
def test_a_malformed_header_is_named_by_its_field(value, problem):
    if isinstance(value, dict) and value and "v" not in value:
        value = {"v": 1, **value}
    with pytest.raises(HeaderInvalid) as caught:
        parse_header(value)
    assert caught.value.problem == problem
    assert str(caught.value) == f"header 'fairness': {problem}"


@pytest.mark.parametrize("cost", [1, 0.5, 1e-9, 1_000_000, 1_000_000.0])
def test_a_cost_inside_its_bounds_is_taken(cost):
    assert parse_header({"v": 1, "cost": cost}).cost == cost


def test_unknown_fields_are_ignored():
    assert parse_header({"v": 1, "tenant": "42", "colour": "red", "x": [1, {}]}) == Header("42")


def test_a_header_has_a_largest_size():
    def of_size(size):
        header = {"v": 1, "more": ""}
        return {**header, "more": "x" * (size - len(json.dumps(header)))}

    assert parse_header(of_size(HEADER_BYTES)) == Header()
    with pytest.raises(HeaderInvalid) as caught:
        parse_header(of_size(HEADER_BYTES + 1))
    assert caught.value.problem == "expected at most 16384 bytes of JSON, got: 16385"


def test_the_first_copy_of_a_message_has_no_serial():
    wire = first_copy()
    copy = parse_copy(wire)
    assert copy == Copy(wire["message"], "")
    assert parse_copy(first_copy()).message != copy.message


def test_every_serial_is_another_and_can_be_read_back():
    serials = [new_serial() for _ in range(100)]
    assert len(set(serials)) == 100
    assert parse_copy({"message": "m1", "serial": serials[0]}) == Copy("m1", serials[0])


def test_the_name_of_a_promotion_can_be_read_back():
    message = first_copy()["message"]
    wire = {"message": message, "serial": f"{message}.1000.0a1b2c3d4e5f"}
    assert parse_copy(wire) == Copy(**wire)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "m1",
        [],
        {},
        {"message": "m1"},
        {"serial": ""},
        {"message": 1, "serial": ""},
        {"message": "m1", "serial": None},
        {"message": "", "serial": ""},
        {"message": "m" * 65, "serial": ""},
        {"message": "m1", "serial": "s" * 129},
        {"message": "m1", "serial": "a:b"},
        {"message": "a.b", "serial": ""},
        {"message": "a:b", "serial": ""},
        {"message": "a\n", "serial": ""},
        {"message": "{a}", "serial": ""},
    ],
)
def test_a_copy_that_cannot_be_read_is_none(value):
    assert parse_copy(value) is None


BEAT = {"celery_beat_task": True, "fairness": {"v": 1, "tenant": "42"}}


@pytest.mark.parametrize("within", [{}, {"sentry-trace": "1"}, {"fairness": "old"}, "text", None])
def test_headers_are_read_from_the_message_and_not_from_a_header_named_headers(within):
    request = Context({**BEAT, "headers": within, "x_trace": "1"})
    assert headers_of(request) == BEAT


def test_headers_of_the_protocol_1_and_of_eager_calls_stand_in_the_request_alone():
    assert headers_of(Context({"headers": {**BEAT, "x_trace": "1"}})) == BEAT
    assert headers_of(Context()) == {}
