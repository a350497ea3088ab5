"""Rates in every form that they are read from and written in, and their bounds on both sides."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections import UserDict
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_fairness.config.policy import RateLimitPolicy
from celery_fairness.config.rates import MAX_PERIOD_SECONDS, MAX_RATE_LIMIT, Rate
from celery_fairness.errors import PolicyInvalid
from tests.support.services import examples

DAYS_366_MS = 366 * 86_400_000
PERIOD = "expected 1 ms to 366 days, such as PT1M, 1m30s or 60 (no months or years), got: "
ISO_PERIOD = (
    "expected an ISO 8601 duration from 1 ms to 366 days, such as PT1M (no months or years), got: "
)
#: Python rejects to write it.
HUGE = pytest.param(10**5000, id="huge")

rates = st.builds(
    lambda limit, ms: Rate(limit, ms / 1000),
    st.integers(1, MAX_RATE_LIMIT),
    st.integers(1, 100_000) | st.integers(1, DAYS_366_MS),
)


@pytest.mark.parametrize(
    "value",
    [
        Rate(100, 60),
        "100/PT1M",
        "100/60",
        "100/60.0",
        "100/60s",
        "100/1m",
        "100/PT60S",
        "0100/60000ms",
        "100/m",
        "100 / m",
        " 100 / PT1M ",
        {"limit": 100, "period": "PT1M"},
        {"limit": 100, "period": "1m"},
        {"limit": 100, "period": 60},
        {"limit": 100, "period": 60.0},
        {"limit": 100, "period": timedelta(minutes=1)},
        UserDict(limit=100, period="PT1M"),
    ],
)
def test_a_rate_is_read_from_every_form(value):
    rate = Rate.parse(value)
    assert rate == Rate(100, 60.0)
    assert (rate.limit, rate.period_seconds, rate.window) == (100, 60.0, (100, 60_000))
    assert type(rate.period_seconds) is float
    assert type(rate.window[1]) is int


@pytest.mark.parametrize(
    ("text", "rate"), [("5/s", Rate(5, 1)), ("5/m", Rate(5, 60)), ("5/h", Rate(5, 3_600))]
)
def test_a_rate_is_read_from_celerys_own_form(text, rate):
    assert Rate.parse(text) == rate
    assert RateLimitPolicy("api", rate=text, throttle=text) == RateLimitPolicy(
        "api", rate=rate, throttle=rate
    )


@pytest.mark.parametrize("unit", ["d", "ms", "M", "H", "S", "T1M", "min"])
def test_celery_has_no_other_unit(unit):
    with pytest.raises(PolicyInvalid, match=r"^rate\.period: expected 1 ms to 366 days"):
        Rate.parse(f"1/{unit}")


@pytest.mark.parametrize("unit", ["s", "m", "h"])
def test_a_unit_alone_is_no_period_of_a_mapping(unit):
    with pytest.raises(PolicyInvalid, match=r"^rate\.period: expected 1 ms to 366 days"):
        Rate.parse({"limit": 1, "period": unit})


@pytest.mark.parametrize(
    ("period_seconds", "ms", "iso"),
    [
        (0.001, 1, "PT0.001S"),
        (0.0012, 1, "PT0.001S"),
        (0.0016, 2, "PT0.002S"),
        (1 / 3, 333, "PT0.333S"),
        (0.1, 100, "PT0.1S"),
        (1, 1000, "PT1S"),
        (5400, 5_400_000, "PT1H30M"),
        (86_400, 86_400_000, "P1D"),
        (MAX_PERIOD_SECONDS, DAYS_366_MS, "P366D"),
        (MAX_PERIOD_SECONDS - 0.0004, DAYS_366_MS, "P366D"),
    ],
)
def test_a_period_is_kept_in_whole_milliseconds(period_seconds, ms, iso):
    rate = Rate(1, period_seconds)
    assert (rate.window[1], rate.period_seconds, rate.iso_period) == (ms, ms / 1000, iso)


def test_two_rates_of_one_period_are_equal_whatever_they_were_read_from():
    assert Rate(1, 1 / 3) == Rate.parse("1/333ms") == Rate.parse("1/PT0.3331S")
    assert len({Rate(1, 1 / 3), Rate(1, 0.333)}) == 1
    assert Rate(1, 1) != Rate(1, 1.001)


@pytest.mark.parametrize("limit", [1, 2, 999_999, 1_000_000_000])
def test_a_limit_inside_its_range_is_taken(limit):
    assert Rate(limit, 1).limit == limit
    assert Rate.parse(f"{limit}/PT1S").limit == limit


@pytest.mark.parametrize(
    "limit", [-1, 0, 1_000_000_001, HUGE, 1.0, True, "1", None, [], float("nan")]
)
def test_a_limit_outside_its_range_is_rejected(limit):
    with pytest.raises(
        PolicyInvalid, match=r"^limit: expected a whole number from 1 to 1000000000"
    ):
        Rate(limit, 1)


@pytest.mark.parametrize(
    "period_seconds",
    [
        0,
        -1,
        0.00099,
        0.0009999999,
        MAX_PERIOD_SECONDS + 0.001,
        MAX_PERIOD_SECONDS * 2,
        HUGE,
        float("inf"),
        float("nan"),
        True,
        "PT1M",
        None,
        timedelta(minutes=1),
    ],
)
def test_a_period_outside_its_range_is_rejected(period_seconds):
    with pytest.raises(PolicyInvalid, match=r"^period_seconds: expected 1 ms to 366 days, such as"):
        Rate(1, period_seconds)


@pytest.mark.parametrize(
    "period",
    [
        "PT0.0009S",
        "0.9ms",
        "0",
        "PT0S",
        "P367D",
        "8784.1h",
        "P1M",
        "P1Y",
        "P1Y2M",
        "P1Y1D",
        "PT",
        "",
        "minute",
        "-PT1M",
        "1/PT1M",
        "9" * 5000,
    ],
)
def test_a_period_that_cannot_be_meant_is_rejected_in_text_and_in_a_mapping(period):
    for value in (f"1/{period}", {"limit": 1, "period": period}):
        with pytest.raises(PolicyInvalid, match=r"^rate\.period: expected 1 ms to 366 days"):
            Rate.parse(value)


def test_zero_points_to_the_concurrency_that_pauses():
    expected = (
        "expected a whole number from 1 to 1000000000 (to pause a key, set its concurrency to 0)"
    )
    for value in ("0/PT1M", "000/PT1M", {"limit": 0, "period": "PT1M"}):
        with pytest.raises(PolicyInvalid) as caught:
            Rate.parse(value, "throttle")
        assert caught.value.problems == (f"throttle.limit: {expected}, got: 0",)


def test_every_problem_of_a_rate_is_named():
    with pytest.raises(PolicyInvalid) as caught:
        Rate.parse({"limit": -1, "perod": "PT1M"}, "throttle")
    assert caught.value.problems == (
        "throttle: expected fields of limit, period, got: 'perod', did you mean 'period'?",
        "throttle.limit: expected a whole number from 1 to 1000000000, got: -1",
        f"throttle.period: {PERIOD}None",
    )
    with pytest.raises(PolicyInvalid) as caught:
        Rate(True, -1)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "limit",
        "period_seconds",
    ]


@pytest.mark.parametrize("missing", ["limit", "period"])
@pytest.mark.parametrize("read", [Rate.parse, Rate.from_ojs])
@pytest.mark.parametrize("null", [True, False])
def test_S23_limit_and_period_are_required(missing, read, null):
    fields = {"limit": 1, "period": "PT1M"}
    if null:
        fields[missing] = None
    else:
        del fields[missing]
    with pytest.raises(PolicyInvalid) as caught:
        read(fields)
    (problem,) = caught.value.problems
    assert problem.startswith(f"rate.{missing}: expected ")
    assert problem.endswith(", got: None")


@pytest.mark.parametrize("period", ["PT1M", "PT60S", "PT1M0S", "PT0.5S", "P1D", "P1W", "P1DT12H"])
def test_S20_a_period_of_the_open_job_spec_is_iso_8601(period):
    assert Rate.from_ojs({"limit": 5, "period": period}) == Rate.parse(f"5/{period}")


@pytest.mark.parametrize(
    "period",
    [
        "60",
        "1m",
        "60s",
        60,
        60.0,
        timedelta(minutes=1),
        " PT1M",
        "PT1M\n",
        "pt1m",
        "P1M",
        "P1Y",
        "",
    ],
)
def test_S20_no_other_form_of_a_period_is(period):
    with pytest.raises(PolicyInvalid) as caught:
        Rate.from_ojs({"limit": 5, "period": period})
    assert caught.value.problems == (f"rate.period: {ISO_PERIOD}{period!r}",)


@pytest.mark.parametrize("value", ["100/PT1M", 5, None, [5, "PT1M"], True])
def test_S20_a_rate_of_the_open_job_spec_is_an_object(value):
    with pytest.raises(PolicyInvalid) as caught:
        Rate.from_ojs(value, "throttle")
    assert caught.value.problems == (
        f"throttle: expected an object of limit and period, got: {value!r}",
    )


@given(rates)
@settings(max_examples=examples(300))
def test_what_is_written_is_read_back(rate):
    assert Rate.parse(str(rate)) == rate
    assert Rate.parse(rate.to_ojs()) == rate
    assert Rate.from_ojs(json.loads(json.dumps(rate.to_ojs()))) == rate
    assert Rate.parse({"limit": rate.limit, "period": rate.period_seconds}) == rate
    assert pickle.loads(pickle.dumps(rate)) == rate


def test_a_rate_says_what_it_is():
    rate = Rate.parse("100/1m")
    assert str(rate) == "100/PT1M"
    assert repr(rate) == "Rate(limit=100, period_seconds=60.0)"
    assert rate.to_ojs() == {"limit": 100, "period": "PT1M"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        rate.limit = 5
