"""What headers of an answer say about the limit of an API."""

from __future__ import annotations

import time

import pytest

from celery_fairness.util.rate_headers import Reported, read_headers

DATE = "Mon, 30 Nov 2026 12:00:00 GMT"
AT = 1_796_040_000


@pytest.mark.parametrize(
    ("headers", "reported"),
    [
        ({}, Reported()),
        ({"Content-Type": "text/plain"}, Reported()),
        ({"Retry-After": "30"}, Reported(30.0)),
        ({"retry-after": 1.5}, Reported(1.5)),
        ({"Retry-After": "Mon, 30 Nov 2026 12:01:30 GMT", "Date": DATE}, Reported(90.0)),
        ({"RateLimit": '"default";r=50;t=30'}, Reported(None, 50, 30.0)),
        ({"RateLimit": '"a";r=50;t=30, "b";r=7;t=3000'}, Reported(None, 7, 3000.0)),
        ({"RateLimit": "limit=100, remaining=5, reset=30"}, Reported(None, 5, 30.0)),
        ({"RateLimit-Remaining": "5", "RateLimit-Reset": "30"}, Reported(None, 5, 30.0)),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "12.5"}, Reported(None, 0, 12.5)),
        ({"X-Rate-Limit-Remaining": "5", "X-Rate-Limit-Reset": "9"}, Reported(None, 5, 9.0)),
        (
            {"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": str(AT + 60), "Date": DATE},
            Reported(None, 5, 60.0),
        ),
        (
            {"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": f"{AT + 60}000", "Date": DATE},
            Reported(None, 5, 60.0),
        ),
        ({"X-RateLimit-Remaining": ["5", "9"], "X-RateLimit-Reset": [b"3"]}, Reported(None, 5, 3)),
        (
            {"Retry-After": "4", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"},
            Reported(4.0, 0, 30.0),
        ),
        # A window of more than a day is followed for a day.
        ({"RateLimit": '"a";r=50;t=900000'}, Reported(None, 50, 86_400.0)),
    ],
)
def test_each_form_is_read(headers, reported):
    assert read_headers(headers) == reported
    assert read_headers(list(headers.items())) == reported
    assert read_headers({name.encode(): value for name, value in headers.items()}) == reported


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "soon"},
        {"Retry-After": "-5"},
        {"Retry-After": "nan"},
        {"Retry-After": "Mon, 30 Nov 2026 11:00:00 GMT", "Date": DATE},
        {"X-RateLimit-Remaining": "5"},
        {"X-RateLimit-Remaining": "-1", "X-RateLimit-Reset": "30"},
        {"X-RateLimit-Remaining": "many", "X-RateLimit-Reset": "30"},
        {"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "0"},
        {"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": str(AT - 1), "Date": DATE},
        {"X-RateLimit-Reset": "30"},
        {"RateLimit": '"default";r=50'},
        {"RateLimit": "\x00"},
        {"RateLimit": []},
    ],
)
def test_what_cannot_be_read_is_ignored(headers):
    assert read_headers(headers) == Reported()


def test_the_time_of_this_process_counts_without_a_date():
    found = read_headers({"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": time.time() + 60})
    assert 58 < found.reset_seconds <= 60


@pytest.mark.parametrize(
    ("headers", "got"), [("Retry-After: 3", "str"), (None, "NoneType"), (7, "int")]
)
def test_what_is_no_headers_is_an_error(headers, got):
    with pytest.raises(TypeError, match=f"headers: expected a mapping of headers, .* got: {got}"):
        read_headers(headers)


def test_an_entry_that_is_no_pair_is_an_error():
    with pytest.raises(TypeError, match="headers: expected pairs of name and value, got: str"):
        read_headers(["Retry-After: 3"])
