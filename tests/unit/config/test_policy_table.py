"""A table of policies, keys, rates and periods that cannot be meant, each with its whole message.

The messages are what a user reads instead of documentation: each names what is wrong, what is
expected, and what was given.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from celery_fairness.config.key_templates import KeyTemplate
from celery_fairness.config.policy import RateLimitPolicy
from celery_fairness.config.rates import Rate
from celery_fairness.errors import PolicyInvalid
from tests.support.numbers import listed

KEYLESS = (
    "key: expected a key (a limit without one belongs to its queue: give it there, in the setting "
    "'queues'), got: "
)
KEY = (
    "key: expected letters, digits, '.', '_', ':' and '-' (ASCII), beginning with a letter or a "
    "digit, got: "
)
RESOLVED = (
    "key: expected letters, digits, '.', '_', ':' and '-' (ASCII), beginning with a letter or a "
    "digit, without fields, got: "
)
BRACES = "key: expected a '}' for every '{', and no other, got: "
FIELD = "key: expected the fields {tenant}, {tier}, {task}, {queue} or {args.NAME}, got: "
PARAMETER = "key: expected a parameter's name behind 'args.', got: "
APART = "key: expected '.', ':' or '-' between two fields, got: "
BEGINS = (
    "key: expected text before the first field where missing is 'empty', as a key cannot begin "
    "with nothing, got: "
)
WHOLE = "expected a whole number from 1 to 1000000000"
PAUSE = f"{WHOLE} (to pause a key, set its concurrency to 0), got: 0"
PERIOD = "expected 1 ms to 366 days, such as PT1M, 1m30s or 60 (no months or years), got: "
ISO = (
    "expected an ISO 8601 duration from 1 ms to 366 days, such as PT1M (no months or years), got: "
)
RATE = (
    "rate: expected 'LIMIT/PERIOD' such as '100/m' or '100/PT1M', a mapping of limit and period, "
    "or a Rate, got: "
)
CONCURRENCY = (
    "concurrency: expected a whole number from 0 (pause) to 1000000, or None (unlimited), got: "
)
ACTION = "on_limit: expected 'wait', 'reschedule' or 'drop', got: "
OJS_FIELDS = f"rate_limit: expected fields of key, {listed('policy')}, on_limit, got: "

KEYS = [
    ("", f"{KEYLESS}''"),
    (None, f"{KEYLESS}None"),
    (5, "key: expected text, got: 5"),
    (b"a", "key: expected text, got: b'a'"),
    (["a"], "key: expected text, got: ['a']"),
    ("_a", f"{KEY}'_a'"),
    (":{tenant}", f"{KEY}':{{tenant}}'"),
    ("a b", f"{KEY}'a b'"),
    ("a\n", f"{KEY}'a\\n'"),
    ("api/{args.a}", f"{KEY}'api/{{args.a}}'"),
    ("größe", f"{KEY}'größe'"),
    ("\ud800", f"{KEY}'\\ud800'"),
    ("x" * 256, "key: expected at most 255 characters, got: 256"),
    ("x" * 255 + "{tenant}", "key: expected at most 255 characters, got: 256"),
    ("{tenant}:{tier}" + "x" * 254, "key: expected at most 255 characters, got: 257"),
    ("a{", f"{BRACES}'a{{'"),
    ("a}", f"{BRACES}'a}}'"),
    ("a:{tenant", f"{BRACES}'a:{{tenant'"),
    ("a:{{tenant}}", f"{BRACES}'a:{{{{tenant}}}}'"),
    ("a:{te{tier}nant}", f"{BRACES}'a:{{te{{tier}}nant}}'"),
    ("a:{}", f"{FIELD}''"),
    ("a:{tennant}", f"{FIELD}'tennant', did you mean 'tenant'?"),
    ("a:{tenant!r}", f"{FIELD}'tenant!r', did you mean 'tenant'?"),
    ("a:{user_id}", f"{FIELD}'user_id', did you mean 'args.user_id'?"),
    ("a:{kwargs.user}", f"{FIELD}'kwargs.user', did you mean 'args.user'?"),
    ("a:{args}", f"{PARAMETER}'args'"),
    ("a:{args.}", f"{PARAMETER}'args.'"),
    ("a:{args.0}", f"{PARAMETER}'args.0'"),
    ("a:{args.order..id}", f"{PARAMETER}'args.order..id'"),
    ("{tenant}{queue}", f"{APART}'{{tenant}}{{queue}}'"),
    ("{tenant}_x_{queue}", f"{APART}'{{tenant}}_x_{{queue}}'"),
]

RATES = [
    (5, f"{RATE}5"),
    (True, f"{RATE}True"),
    ("100", f"{RATE}'100'"),
    ([100, "PT1M"], f"{RATE}[100, 'PT1M']"),
    (timedelta(minutes=1), f"{RATE}datetime.timedelta(seconds=60)"),
    ("0/PT1M", f"rate.limit: {PAUSE}"),
    ("-5/PT1M", f"rate.limit: {WHOLE}, got: '-5'"),
    ("1_000/PT1M", f"rate.limit: {WHOLE}, got: '1_000'"),
    ("1.5/PT1M", f"rate.limit: {WHOLE}, got: '1.5'"),
    ("٣/PT1M", f"rate.limit: {WHOLE}, got: '٣'"),
    ("/PT1M", f"rate.limit: {WHOLE}, got: ''"),
    ("1000000001/PT1M", f"rate.limit: {WHOLE}, got: 1000000001"),
    ("9" * 5000 + "/PT1M", f"rate.limit: {WHOLE}, got: '{'9' * 78}…"),
    ({"limit": 1.0, "period": 1}, f"rate.limit: {WHOLE}, got: 1.0"),
    ({"limit": True, "period": 1}, f"rate.limit: {WHOLE}, got: True"),
    ({"limit": "5", "period": 1}, f"rate.limit: {WHOLE}, got: '5'"),
    ({"period": "PT1M"}, f"rate.limit: {WHOLE}, got: None"),
    ({"limit": 5}, f"rate.period: {PERIOD}None"),
    ("5/", f"rate.period: {PERIOD}''"),
    ("5/P1M", f"rate.period: {PERIOD}'P1M'"),
    ("5/P1Y", f"rate.period: {PERIOD}'P1Y'"),
    ("5/minute", f"rate.period: {PERIOD}'minute'"),
    ("5/PT0S", f"rate.period: {PERIOD}'PT0S'"),
    ("5/0.9ms", f"rate.period: {PERIOD}'0.9ms'"),
    ("5/P367D", f"rate.period: {PERIOD}'P367D'"),
    ("5/-60", f"rate.period: {PERIOD}'-60'"),
    ({"limit": 5, "period": 0}, f"rate.period: {PERIOD}0"),
    ({"limit": 5, "period": True}, f"rate.period: {PERIOD}True"),
    ({"limit": 5, "period": float("nan")}, f"rate.period: {PERIOD}nan"),
    ({"limit": 5, "period": float("inf")}, f"rate.period: {PERIOD}inf"),
    (
        {"limit": 5, "period": timedelta(microseconds=999)},
        f"rate.period: {PERIOD}datetime.timedelta(microseconds=999)",
    ),
    (
        {"limit": 5, "perod": "PT1M", "period": "PT1M"},
        "rate: expected fields of limit, period, got: 'perod', did you mean 'period'?",
    ),
    ({"limit": 5, "period": 1, 7: 8}, "rate: expected fields of limit, period, got: 7"),
    (
        {"limit": 5, "period": 1, 10**5000: 8},
        "rate: expected fields of limit, period, got: int that is too long to show",
    ),
    ("0/P1M", f"rate.limit: {PAUSE}; rate.period: {PERIOD}'P1M'"),
]

POLICIES = [
    ({"concurrency": -1}, f"{CONCURRENCY}-1"),
    ({"concurrency": 1_000_001}, f"{CONCURRENCY}1000001"),
    ({"concurrency": True}, f"{CONCURRENCY}True"),
    ({"concurrency": 5.0}, f"{CONCURRENCY}5.0"),
    ({"concurrency": "unlimited"}, f"{CONCURRENCY}'unlimited'"),
    ({"throttle": "0/PT1S"}, f"throttle.limit: {PAUSE}"),
    ({"throttle": {"limit": 1, "period": "P1M"}}, f"throttle.period: {PERIOD}'P1M'"),
    ({"on_limit": "wiat"}, f"{ACTION}'wiat', did you mean 'wait'?"),
    ({"on_limit": "DROP"}, f"{ACTION}'DROP'"),
    ({"on_limit": None}, f"{ACTION}None"),
    ({"on_limit": ["drop"]}, f"{ACTION}['drop']"),
    ({"missing": "zero"}, "missing: expected 'error' or 'empty', got: 'zero'"),
    ({"missing": None}, "missing: expected 'error' or 'empty', got: None"),
    ({"key": "{args.a}:x", "missing": "empty"}, f"{BEGINS}'{{args.a}}:x'"),
    (
        {"key": "_", "concurrency": -1, "rate": "x", "on_limit": 1},
        f"{KEY}'_'; {CONCURRENCY}-1; {RATE}'x'; {ACTION}1",
    ),
    (
        {"key": "queue:emails", "concurrency": 5, "slots": 3},
        "slots: expected a key of its own, not that of a queue or a tenant, got: 'queue:emails'",
    ),
    (
        {"key": "tenant:{tenant}", "rate": "5/m", "units": "args.n"},
        "units: expected a key of its own, not that of a queue or a tenant, got: 'tenant:{tenant}'",
    ),
]

OJS = [
    (None, "rate_limit: expected an object, got: None"),
    ([], "rate_limit: expected an object, got: []"),
    ("api", "rate_limit: expected an object, got: 'api'"),
    ({}, f"{KEYLESS}None"),
    ({"key": None, "concurrency": 5}, f"{KEYLESS}None"),
    ({"key": "tenant:{tenant}"}, f"{RESOLVED}'tenant:{{tenant}}'"),
    ({"key": "a{"}, f"{RESOLVED}'a{{'"),
    ({"key": "-a"}, f"{KEY}'-a'"),
    ({"key": 5}, "key: expected text, got: 5"),
    ({"key": "a", "concurrency": "5"}, f"{CONCURRENCY}'5'"),
    ({"key": "a", "concurrency": 2.0}, f"{CONCURRENCY}2.0"),
    (
        {"key": "a", "rate": "100/PT1M"},
        "rate: expected an object of limit and period, got: '100/PT1M'",
    ),
    ({"key": "a", "rate": 5}, "rate: expected an object of limit and period, got: 5"),
    ({"key": "a", "throttle": []}, "throttle: expected an object of limit and period, got: []"),
    ({"key": "a", "rate": {"limit": 0, "period": "PT1M"}}, f"rate.limit: {PAUSE}"),
    ({"key": "a", "rate": {"limit": 5, "period": "60"}}, f"rate.period: {ISO}'60'"),
    ({"key": "a", "rate": {"limit": 5, "period": 60}}, f"rate.period: {ISO}60"),
    ({"key": "a", "rate": {"limit": 5, "period": "P1M"}}, f"rate.period: {ISO}'P1M'"),
    ({"key": "a", "throttle": {"limit": 5}}, f"throttle.period: {ISO}None"),
    ({"key": "a", "on_limit": "reject"}, f"{ACTION}'reject'"),
    ({"key": "a", "onlimit": "drop"}, f"{OJS_FIELDS}'onlimit', did you mean 'on_limit'?"),
    ({"key": "a", "missing": "empty"}, f"{OJS_FIELDS}'missing'"),
    (
        {"max_per_second": 5},
        (
            "max_per_second: expected a key and a throttle, such as "
            '{"limit": 5, "period": "PT1S"}, got: 5'
        ),
    ),
    (
        {"key": "a", "rate": 1, "period": "second"},
        (
            'period: expected it inside rate, as ISO 8601, such as {"limit": 5, "period": "PT1M"}, '
            "got: 'second'"
        ),
    ),
]


def check(text, call, *args, **kwargs):
    with pytest.raises(PolicyInvalid) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == text


@pytest.mark.parametrize(("key", "text"), KEYS)
def test_a_key_that_cannot_be_meant(key, text):
    check(text, KeyTemplate, key)
    check(text, RateLimitPolicy, key)


@pytest.mark.parametrize(("rate", "text"), RATES)
def test_a_rate_that_cannot_be_meant(rate, text):
    check(text, Rate.parse, rate)
    check(text, RateLimitPolicy, "a", rate=rate)


@pytest.mark.parametrize(("fields", "text"), POLICIES)
def test_a_policy_that_cannot_be_meant(fields, text):
    check(text, RateLimitPolicy, **{"key": "a", **fields})


@pytest.mark.parametrize(("obj", "text"), OJS)
def test_a_policy_of_the_open_job_spec_that_cannot_be_meant(obj, text):
    check(text, RateLimitPolicy.from_ojs, obj)
