"""The scheduler reads the headers of a message, and JSON bodies have one decoder."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.serialization import registry
from kombu.transport.virtual import Message
from kombu.utils.json import dumps

from celery_fairness.config.queue_policy import partition_key
from celery_fairness.config.settings import build_settings
from celery_fairness.config.tenants import key_part
from celery_fairness.scheduler.types import Claimed
from celery_fairness.transport.envelope import JSON_TYPE, FairMessage, message_of, waiting_of


@pytest.mark.parametrize(
    ("expires", "expires_ms"),
    [
        ("2026-01-01T00:00:00+00:00", 1_767_225_600_000),
        ("2026-01-01T01:00:00.250000+01:00", 1_767_225_600_250),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        # Long ago is not never.
        ("1960-01-01T00:00:00+00:00", 1),
        # Of the worker's time zone; and what Celery's workers cannot read.
        ("2026-01-01T00:00:00", 0),
        (1_767_225_600, 0),
        ("soon", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_a_message_expires_when_its_header_says(expires, expires_ms):
    properties = {"delivery_tag": "t1", "delivery_info": {"exchange": ""}}
    message = {"headers": {"task": "shop.t", "expires": expires}, "properties": properties}
    assert waiting_of("jobs", message, build_settings({})).expires_ms == expires_ms


@pytest.mark.parametrize(
    ("headers", "task_id", "name"),
    [
        ({"id": "4fd6", "task": "shop.pay"}, "4fd6", "shop.pay"),
        ({"root_id": "no", "stamps": {"id": "no"}, "task": "shop.pay"}, "", "shop.pay"),
        ({"id": "4fd6"}, "4fd6", ""),
        ({"id": 7, "task": None}, "", ""),
        ({"id": "", "task": ""}, "", ""),
        # Keys have no space, and what cannot be encoded is not guessed.
        ({"id": "a b", "task": "gr\u00fc\u00dfe"}, key_part("a b"), key_part("gr\u00fc\u00dfe")),
        ({"id": "\udcff", "task": "\udcff"}, "", ""),
        ({}, "", ""),
    ],
)
def test_a_message_is_found_by_the_id_and_name_in_its_headers(headers, task_id, name):
    properties = {"delivery_tag": "t1", "delivery_info": {"exchange": ""}}
    message = {"headers": headers, "properties": properties}
    waiting = waiting_of("jobs", message, build_settings({}))
    assert (waiting.task_id, waiting.kind) == (task_id, name)
    assert " " not in waiting.task_id + waiting.kind


@pytest.mark.parametrize(
    ("eta", "left"),
    [
        ("2026-12-01T00:00:00+00:00", None),
        ("2026-12-01T00:00:00", None),
        # Celery reads these later, or rejects them. The scheduler does not read them.
        ("2026-12-01T25:00:00", "2026-12-01T25:00:00"),
        ("2026-12", "2026-12"),
        (1_790_000_000, 1_790_000_000),
        ("soon", "soon"),
    ],
)
def test_only_an_eta_for_which_the_scheduler_waited_is_taken_from_the_worker(eta, left):
    properties = {"delivery_tag": "t1", "delivery_info": {"exchange": ""}}
    message = {"headers": {"task": "shop.t", "eta": eta}, "properties": properties}
    waiting = waiting_of("jobs", message, build_settings({}))
    claimed = message_of(Claimed("t1.a.1", "jobs", 1, "_system", 0, waiting.message))
    assert (claimed["headers"]["eta"], bool(waiting.eta_ms)) == (left, left is None)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        *(
            (None, value)
            for value in (UUID(int=7), Decimal("1.50"), datetime(2026, 1, 1, tzinfo=UTC), 7, "a")
        ),
        (
            '[[], {"who": {"__type__": "no", "__value__": 1}}, {}]',
            {"__type__": "no", "__value__": 1},
        ),
    ],
    ids=str,
)
def test_a_partition_is_the_same_whichever_process_makes_its_key(body, value):
    body = body or dumps([[], {"who": value}, {}])
    properties = {"delivery_tag": "t1", "delivery_info": {"exchange": ""}}
    message = {"headers": {"task": "shop.t"}, "properties": properties, "body": body}
    settings = build_settings({"queues": {"jobs": {"global_limit": 1, "by_args": ["who"]}}})
    assert waiting_of("jobs", message, settings).limits.startswith(partition_key("jobs", [value]))


@pytest.mark.parametrize(
    "priority", [float("inf"), float("-inf"), float("nan"), "1e999", "high", [1], {}, None]
)
def test_a_priority_that_is_no_number_counts_as_0(priority):
    message = {
        "properties": {
            "delivery_tag": "t1",
            "delivery_info": {"exchange": ""},
            "priority": priority,
        },
        "headers": {},
    }
    assert waiting_of("q", message, build_settings({})).rank == 0


def delivered(body, accept, content_type=JSON_TYPE):
    """Return a message with ``body``, as a consumer that accepts ``accept`` gets it."""
    raw = {
        "content-type": content_type,
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {"delivery_tag": "1", "delivery_info": {}},
    }
    message = FairMessage(raw, channel=None, accept=accept)
    message.body = body.encode()
    return message


@pytest.mark.parametrize("body", [[[1], {"a": "ü"}, {}], [[UUID(int=7)], {}, {}], "text"])
def test_a_body_in_json_is_decoded_as_kombu_decodes_it(body):
    message = delivered(dumps(body), {JSON_TYPE})
    assert message.payload == body == Message._decode(message)


@pytest.mark.parametrize(
    ("body", "accept", "content_type", "error"),
    [
        ("[1]", {"application/x-yaml"}, JSON_TYPE, ContentDisallowed),
        ("[1", {JSON_TYPE}, JSON_TYPE, DecodeError),
        ("[" * 100_000, {JSON_TYPE}, JSON_TYPE, DecodeError),
        ("[1]", {JSON_TYPE}, "application/x-python-serialize", ContentDisallowed),
    ],
)
def test_a_body_that_may_not_be_decoded_has_the_errors_of_kombu(body, accept, content_type, error):
    with pytest.raises(error):
        assert delivered(body, accept, content_type).payload


def test_a_decoder_that_somebody_has_registered_decodes_bodies(monkeypatch):
    monkeypatch.setitem(registry._decoders, JSON_TYPE, lambda _: "theirs")
    assert delivered("[1]", {JSON_TYPE}).payload == "theirs"
