"""Durations in every form, and the one conversion between seconds and milliseconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_fairness.units import DURATION_FORMS, milliseconds, parse_duration, seconds


@pytest.mark.parametrize(
    ("text", "expected_seconds"),
    [
        ("30", 30.0),
        ("0", 0.0),
        ("0.25", 0.25),
        ("007", 7.0),
        ("30s", 30.0),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("1m30s", 90.0),
        ("1m500ms", 60.5),
        ("2h", 7200.0),
        ("1d2h3m4s5ms", 93784.005),
        ("90m", 5400.0),
        ("PT30S", 30.0),
        ("PT0S", 0.0),
        ("PT1.5S", 1.5),
        ("PT1M30S", 90.0),
        ("PT2H", 7200.0),
        ("P1D", 86400.0),
        ("P1DT1H", 90000.0),
        ("P2W", 1209600.0),
        ("\t30s\n", 30.0),
    ],
)
def test_a_duration_is_read(text, expected_seconds):
    assert parse_duration(text) == expected_seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "-1",
        "-1s",
        "+1",
        "1e3",
        ".5",
        "5.",
        "1,5",
        "30 s",
        "30S",
        "30sec",
        "1y",
        "1w",
        "1m30",
        "inf",
        "nan",
        "P",
        "PT",
        "P1",
        "P1M",
        "P1Y",
        "P1DT",
        "PT1D",
        "P1S",
        "pt30s",
        "-PT30S",
        "PT30S1",
        "30s30",
        "unlimited",
        "0x10",
        "1_000",
    ],
)
def test_anything_else_is_refused_and_shown(text):
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value) == f"expected {DURATION_FORMS}, got: {text!r}"


@pytest.mark.parametrize(
    ("given_seconds", "ms"),
    [
        (0, 0),
        (15, 15_000),
        (0.001, 1),
        (0.0004, 0),
        (0.0006, 1),
        (1 / 3, 333),
        (86_400.0, 86_400_000),
    ],
)
def test_seconds_become_whole_milliseconds(given_seconds, ms):
    converted = milliseconds(given_seconds)
    assert converted == ms
    assert type(converted) is int


@given(st.integers(0, 2**50))
def test_milliseconds_survive_the_way_there_and_back(ms):
    assert milliseconds(seconds(ms)) == ms
