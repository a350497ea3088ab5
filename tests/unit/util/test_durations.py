"""Durations in every form, and the one conversion between seconds and milliseconds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_fairness.util.durations import (
    DURATION_FORMS,
    iso_duration,
    milliseconds,
    parse_duration,
    seconds,
)
from tests.support.services import examples


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
        ("0.3333333333333333", 1 / 3),
        ("9" * 20, 1e20),
        # What a sum of floats would miss by one digit.
        ("PT1M1.471S", 61.471),
        ("1m1.471s", 61.471),
        ("61.471", 61.471),
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
        "٣٠",
        "9" * 21,
        "0." + "3" * 21,
    ],
)
def test_anything_else_is_rejected_and_shown(text):
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


@pytest.mark.parametrize(
    ("given_seconds", "text"),
    [
        (0, "PT0S"),
        (0.001, "PT0.001S"),
        (0.1, "PT0.1S"),
        (1, "PT1S"),
        (1.5, "PT1.5S"),
        (59.999, "PT59.999S"),
        (60, "PT1M"),
        (90.0, "PT1M30S"),
        (3600, "PT1H"),
        (5400, "PT1H30M"),
        (86_399.25, "PT23H59M59.25S"),
        (86_400, "P1D"),
        (604_800, "P7D"),
        (93_784.005, "P1DT2H3M4.005S"),
        (366 * 86_400.0, "P366D"),
        (0.0004, "PT0S"),
        (59.9996, "PT1M"),
    ],
)
def test_a_duration_is_written_as_iso_8601(given_seconds, text):
    assert iso_duration(given_seconds) == text


@pytest.mark.parametrize("given_seconds", [-1, -0.001, float("inf"), float("-inf"), float("nan")])
def test_a_length_that_is_none_is_not_written(given_seconds):
    with pytest.raises(ValueError) as caught:
        iso_duration(given_seconds)
    assert str(caught.value) == f"expected seconds from 0 on, got: {given_seconds!r}"


@given(st.integers(0, 2**50) | st.integers(0, 366 * 86_400_000))
@settings(max_examples=examples(500))
def test_a_written_duration_is_read_back_to_the_same_number(ms):
    assert parse_duration(iso_duration(seconds(ms))) == seconds(ms)
    assert milliseconds(parse_duration(iso_duration(seconds(ms)))) == ms
