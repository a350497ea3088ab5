"""How long a 429 lets wait, from whatever it was told by."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from celery_fairness.util.retry_after import wait_after, wait_until

NOW = 1_760_000_000.0
AT = datetime.fromtimestamp(NOW, UTC)
DAY = 86_400.0


@pytest.fixture(autouse=True)
def _frozen(monkeypatch):
    monkeypatch.setattr("time.time", lambda: NOW)


@pytest.mark.parametrize(
    ("until", "wait"),
    [
        (NOW + 30, 30),
        (int(NOW) + 1, 1),
        (NOW + DAY, DAY),
        (AT + timedelta(seconds=90), 90),
        ((AT + timedelta(seconds=90)).astimezone(timezone(timedelta(hours=-7))), 90),
    ],
)
def test_a_time_is_waited_for(until, wait, caplog):
    assert wait_until(until) == pytest.approx(wait)
    assert not caplog.records


@pytest.mark.parametrize(
    ("retry_after", "wait"),
    [
        (2, 2),
        (1.5, 1.5),
        ("120", 120),
        (" 3 ", 3),
        (format_datetime(AT + timedelta(seconds=60), usegmt=True), 60),
    ],
)
def test_a_wait_is_a_number_or_what_the_header_says(retry_after, wait, caplog):
    assert wait_after(retry_after) == pytest.approx(wait)
    assert not caplog.records


@pytest.mark.parametrize(
    ("read", "given", "wait", "expected"),
    [
        (wait_until, AT.replace(tzinfo=None), 1, "a datetime with a time zone, got: 2025-10-09"),
        (wait_until, NOW, 1, "a second from now or later, got: 1760000000.0"),
        (wait_until, AT - timedelta(days=3), 1, "a second from now or later, got: 2025-10-06"),
        (wait_until, NOW + DAY + 1, DAY, "a day from now at most, got: 1760086401.0"),
        (wait_until, float("nan"), 1, "a second from now or later, got: nan"),
        (wait_until, float("inf"), DAY, "a day from now at most, got: inf"),
        pytest.param(wait_until, 10**400, DAY, "a day from now at most, got: 1000", id="long"),
        pytest.param(
            *(wait_after, -(10**5000), 1, "a second from now or later, got: int that is too long"),
            id="too long to show",
        ),
        pytest.param(
            *(wait_after, "9" * 5000, DAY, "a day from now at most, got: inf"), id="digits"
        ),
        (
            wait_after,
            "Fri, 01 Jan 99999999999 00:00:00 GMT",
            1,
            "seconds or an HTTP date, got: 'Fri",
        ),
        (wait_until, True, 1, "a datetime with a time zone or Unix seconds, got: True"),
        (wait_until, "soon", 1, "a datetime with a time zone or Unix seconds, got: 'soon'"),
        (wait_after, 0, 1, "a second from now or later, got: 0"),
        (wait_after, "-5", 1, "a second from now or later, got: -5.0"),
        (wait_after, "1e9", DAY, "a day from now at most, got: 1000000000.0"),
        (wait_after, "soon", 1, "seconds or an HTTP date, got: 'soon'"),
        (wait_after, None, 1, "seconds or an HTTP date, got: None"),
        (wait_after, False, 1, "seconds or an HTTP date, got: False"),
        (wait_after, "Wed, 21 Oct 2015 07:28:00 GMT", 1, "a second from now or later, got: 2015"),
    ],
)
def test_what_cannot_be_meant_is_moved_and_said(read, given, wait, expected, caplog):
    with caplog.at_level(logging.WARNING, "celery_fairness"):
        assert read(given) == wait
    (record,) = caplog.records
    assert f"invalid cool-down: expected {expected}" in record.getMessage()
