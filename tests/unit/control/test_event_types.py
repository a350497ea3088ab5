"""Events as values: ids, envelopes, and the table of types."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from pydantic import ValidationError

from celery_fairness.control.health.event_types import (
    TYPES,
    EventPage,
    check_types,
    entry_of,
    event_id,
    event_of,
)
from celery_fairness.control.health.events_api import source_of
from celery_fairness.store.address import address_from_url

SOURCE = "ojs://shop/dispatch/localhost:6379"
MS = 1_760_000_000_123
DROPPED = {
    "type": "rate_limit.dropped",
    "key": "api",
    "job_id": "4fd6",
    "job_type": "shop.pay",
    "queue": "q",
}


def test_the_open_job_specs_four_rows_say_what_it_asks():
    wanted = {
        "rate_limit.exceeded": {"key", "strategy", "limit", "current"},
        "rate_limit.released": {"key", "strategy", "job_id"},
        "rate_limit.dropped": {"key", "job_id", "job_type"},
        "rate_limit.dynamic_adjusted": {"key", "until", "reason"},
    }
    for name, fields in wanted.items():
        assert fields <= set(TYPES[name].fields)


@pytest.mark.parametrize("name", TYPES)
def test_a_row_has_a_name_of_its_own_and_no_field_twice(name):
    row = TYPES[name]
    assert row.name == name
    assert len(set(row.fields)) == len(row.fields)
    assert row.meaning


def test_the_envelope_is_that_of_the_open_job_spec():
    event = event_of(f"{MS}-0", DROPPED, SOURCE)
    data = {name: value for name, value in DROPPED.items() if name != "type"}
    assert event.model_dump(mode="json") == {
        "specversion": "1.0",
        "id": event.id,
        "type": "rate_limit.dropped",
        "source": SOURCE,
        "time": "2025-10-09T08:53:20.123Z",
        "subject": "4fd6",
        "datacontenttype": "application/json",
        "data": data,
    }
    assert event.as_cloudevent() == event.model_dump(mode="json") | {
        "type": "org.openjobspec.rate_limit.dropped"
    }
    assert event.at == datetime(2025, 10, 9, 8, 53, 20, 123_000, tzinfo=UTC)


def test_an_event_about_no_task_has_no_subject():
    fields = {"type": "rate_limit.dynamic_adjusted", "key": "api", "until": str(MS), "reason": ""}
    event = event_of("5-0", fields, SOURCE)
    assert "subject" not in event.model_dump(mode="json")
    assert event.data == {"key": "api", "until": "2025-10-09T08:53:20.123Z", "reason": ""}


def test_numbers_are_numbers_and_the_values_are_frozen():
    event = event_of("5-0", {"type": "fairness.purged", "queue": "7", "tasks": "7"}, SOURCE)
    assert event.data == {"queue": "7", "tasks": 7}
    with pytest.raises(ValidationError, match="frozen"):
        event.type = "other"
    with pytest.raises(TypeError):
        event.data["queue"] = "other"


@pytest.mark.parametrize("number", [0, 1, 4_095, 4_096, 1_000_000])
def test_an_id_is_a_uuid_of_version_7_and_says_where_the_event_is(number):
    text = event_id(f"{MS}-{number}", SOURCE)
    uuid = UUID(text.removeprefix("evt_"))
    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert uuid.int >> 80 == MS
    assert entry_of(text) == f"{MS}-{number}"
    assert text != event_id(f"{MS}-{number}", SOURCE + "0")
    assert text == event_id(f"{MS}-{number}", SOURCE)


def test_later_events_have_larger_ids():
    places = ["1-0", "1-1", "1-4095", "2-0", f"{MS}-3", f"{MS + 1}-0"]
    ids = [event_id(place, SOURCE) for place in places]
    assert ids == sorted(ids)


@pytest.mark.parametrize(
    "wrong", ["", "5-0", "evt_", "evt_x", "0190-", "evt_6c0a4b5e-3f6e-4a54-8a43-6f6ed1a5b6f1", 7]
)
def test_what_is_no_id_is_an_error(wrong):
    with pytest.raises(ValueError, match=r"after: expected the id of an event.*got: "):
        entry_of(wrong)


def test_types_that_are_not_known_are_an_error_with_a_suggestion():
    assert check_types(None) == frozenset()
    assert check_types(["fairness.paused"]) == {"fairness.paused"}
    with pytest.raises(ValueError, match=r"got: 'fairness.pause', did you mean 'fairness.paused'"):
        check_types(["fairness.pause"])
    with pytest.raises(ValueError, match="several types"):
        check_types("fairness.paused")


def test_a_page_is_the_answer_to_a_poll():
    event = event_of("5-0", DROPPED, SOURCE)
    page = EventPage(events=(event,), cursor=event.id, has_more=True)
    assert page.model_dump(mode="json") == {
        "events": [event.model_dump(mode="json")],
        "cursor": event.id,
        "has_more": True,
    }


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("redis://user:secret@cache:6379/0", "cache:6379"),
        ("rediss://cache", "cache"),
        ("unix:///run/redis.sock", "localhost"),
        ("sentinel://a:1;sentinel://b:2?master_name=main", "main"),
    ],
)
def test_the_source_names_app_and_redis_and_no_secret(url, host):
    assert source_of("shop", address_from_url(url)) == f"ojs://shop/dispatch/{host}"


def test_a_time_that_python_does_not_know_stays_as_it_is():
    latest = "253402300799000"
    for text, said in ((latest, "9999-12-31T23:59:59.000Z"), ("253402300800000",) * 2):
        event = event_of("5-0", {"type": "task.put", "eta": text}, SOURCE)
        assert event.data["eta"] == said
