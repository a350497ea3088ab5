"""Policies: what they take, the Open Job Spec both ways, and several limits of one key as one."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import pickle
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from celery_fairness.config.key_templates import KeyValues
from celery_fairness.config.limit_spec import Limit, key_with_amounts, keys_of_lease
from celery_fairness.config.policy import MAX_LIMITS, RateLimitPolicy, check_keys, merge
from celery_fairness.config.rates import Rate
from celery_fairness.errors import KeyMissing, PolicyInvalid
from celery_fairness.message.limits import read_policies
from tests.support.numbers import unset
from tests.support.services import examples
from tests.unit.config.test_rates import rates

KEY_EXPECTED = "letters, digits, '.', '_', ':' and '-' (ASCII), beginning with a letter or a digit"
KEYLESS = (
    "key: expected a key (a limit without one belongs to its queue: give it there, in the setting "
    "'queues'), got: "
)
ACTIONS = ("wait", "reschedule", "drop")

#: The five policies of section 14 of the Open Job Spec's rate limiting.
OF_THE_SPECIFICATION = {
    "14.1": {"key": "payment-api", "concurrency": 5},
    "14.2": {"key": "email-provider", "rate": {"limit": 1000, "period": "PT1H"}},
    "14.3": {
        "key": "tenant:acme-corp:reports",
        "concurrency": 3,
        "throttle": {"limit": 1, "period": "PT1S"},
    },
    "14.4": {
        "key": "push-notifications",
        "rate": {"limit": 10000, "period": "PT1M"},
        "on_limit": "drop",
    },
    "14.5": {
        "key": "api.partner.com",
        "concurrency": 10,
        "rate": {"limit": 500, "period": "PT1M"},
        "throttle": {"limit": 10, "period": "PT1S"},
        "on_limit": "wait",
    },
}


def problems_of(call, *args, **kwargs):
    with pytest.raises(PolicyInvalid) as caught:
        call(*args, **kwargs)
    return caught.value.problems


def test_a_policy_that_limits_nothing_is_legal_and_waits():
    policy = RateLimitPolicy("api.stripe.com")
    assert dataclasses.asdict(policy) == {
        "key": "api.stripe.com",
        **unset("policy"),
        "on_limit": "wait",
        "missing": "error",
        "template": dataclasses.asdict(policy.template),
    }
    assert policy.limit() == Limit("api.stripe.com")


def test_a_rate_and_a_throttle_are_given_in_any_form():
    policy = RateLimitPolicy(
        key="api.stripe.com", concurrency=5, rate="100/PT1M", throttle={"limit": 10, "period": 1}
    )
    assert policy.rate == Rate(100, 60)
    assert policy.throttle == Rate(10, 1)
    assert policy == RateLimitPolicy("api.stripe.com", 5, Rate(100, 60), Rate(10, 1.0))


@pytest.mark.parametrize("concurrency", [None, 0, 1, 1_000_000])
def test_S18_concurrency_is_a_whole_number_and_0_pauses_and_none_is_unlimited(concurrency):
    assert RateLimitPolicy("a", concurrency).concurrency == concurrency
    policy = RateLimitPolicy.from_ojs({"key": "a", "concurrency": concurrency})
    assert policy.concurrency == concurrency
    assert policy.limit()["concurrency"] == concurrency


@pytest.mark.parametrize(
    "concurrency", [-1, 1_000_001, 1.0, True, False, "5", [], {}, pytest.param(10**5000, id="huge")]
)
def test_S18_nothing_else_is_a_concurrency(concurrency):
    for make in (
        lambda: RateLimitPolicy("a", concurrency),
        lambda: RateLimitPolicy.from_ojs({"key": "a", "concurrency": concurrency}),
    ):
        (problem,) = problems_of(make)
        assert problem.startswith(
            "concurrency: expected a whole number from 0 (pause) to 1000000, or None (unlimited), "
            "got: "
        )


def test_S18_an_absent_concurrency_is_unlimited():
    assert RateLimitPolicy.from_ojs({"key": "a"}).concurrency is None


@pytest.mark.parametrize("section", OF_THE_SPECIFICATION)
def test_S15_the_policies_of_the_specification_are_read_and_written(section):
    written = OF_THE_SPECIFICATION[section]
    policy = RateLimitPolicy.from_ojs(json.loads(json.dumps(written)))
    assert policy.to_ojs() == {"on_limit": "wait", **written}


def test_S15_a_field_that_is_null_is_absent():
    nulls = dict.fromkeys(("concurrency", "rate", "throttle", "on_limit"))
    assert RateLimitPolicy.from_ojs({"key": "a", **nulls}) == RateLimitPolicy("a")


@pytest.mark.parametrize("key", ["a", "9", "api.stripe.com", "tenant:acme:api:stripe", "x" * 255])
def test_S17_a_key_of_the_pattern_is_taken(key):
    assert RateLimitPolicy.from_ojs({"key": key}).key == key
    assert RateLimitPolicy(key).key == key


@pytest.mark.parametrize(
    "key", ["_a", ".a", ":a", "-a", "a b", "a/b", "a\n", "ä", "٣", "a*", "\x00"]
)
def test_S17_a_key_outside_the_pattern_is_rejected(key):
    expected = (f"key: expected {KEY_EXPECTED}, got: {key!r}",)
    assert problems_of(RateLimitPolicy, key) == expected
    assert problems_of(RateLimitPolicy.from_ojs, {"key": key}) == expected


def test_S17_a_key_of_more_than_255_characters_is_rejected():
    expected = ("key: expected at most 255 characters, got: 256",)
    assert problems_of(RateLimitPolicy, "x" * 256) == expected
    assert problems_of(RateLimitPolicy.from_ojs, {"key": "x" * 256}) == expected


@pytest.mark.parametrize("obj", [{}, {"concurrency": 5}, {"key": None}, {"key": ""}])
def test_S16_S28_a_limit_without_a_key_is_an_error_that_points_to_the_queue(obj):
    assert problems_of(RateLimitPolicy.from_ojs, obj) == (f"{KEYLESS}{obj.get('key')!r}",)


def test_S28_so_is_one_that_python_declares():
    assert problems_of(RateLimitPolicy, "") == (f"{KEYLESS}''",)
    assert problems_of(RateLimitPolicy, None, 5) == (f"{KEYLESS}None",)


def test_S16_policies_with_one_key_are_one_limit():
    policies = [RateLimitPolicy("a", 5), RateLimitPolicy("a", 3), RateLimitPolicy("b", 1)]
    limits = [policy.limit() for policy in policies]
    assert merge(limits) == (Limit("a", concurrency=3), Limit("b", concurrency=1))


def test_S20_a_rate_is_a_limit_and_a_period():
    policy = RateLimitPolicy.from_ojs({"key": "a", "rate": {"limit": 100, "period": "PT1M"}})
    assert policy == RateLimitPolicy("a", rate=Rate(100, 60))
    assert policy.limit()["rate"] == ((100, 60_000),)


def test_S21_a_throttle_is_a_limit_and_a_period():
    policy = RateLimitPolicy.from_ojs({"key": "a", "throttle": {"limit": 10, "period": "PT1S"}})
    assert policy == RateLimitPolicy("a", throttle=Rate(10, 1))
    assert policy.limit()["throttle"] == ((10, 1_000),)


def test_S22_a_policy_has_both_a_rate_and_a_throttle():
    obj = {
        "key": "a",
        "rate": {"limit": 9, "period": "PT1M"},
        "throttle": {"limit": 1, "period": "PT1S"},
    }
    limit = RateLimitPolicy.from_ojs(obj).limit()
    assert (limit["rate"], limit["throttle"]) == (((9, 60_000),), ((1, 1_000),))


@pytest.mark.parametrize("parent", ["rate", "throttle"])
@pytest.mark.parametrize("missing", ["limit", "period"])
def test_S23_a_rate_and_a_throttle_have_both_fields(parent, missing):
    fields = {"limit": 1, "period": "PT1S"}
    del fields[missing]
    for read in (RateLimitPolicy.from_ojs, lambda obj: RateLimitPolicy(**obj)):
        (problem,) = problems_of(read, {"key": "a", parent: fields})
        assert problem.startswith(f"{parent}.{missing}: expected ")
        assert problem.endswith(", got: None")


@pytest.mark.parametrize("on_limit", ACTIONS)
def test_S24_S25_S26_the_three_actions(on_limit):
    assert RateLimitPolicy("a", on_limit=on_limit).on_limit == on_limit
    policy = RateLimitPolicy.from_ojs({"key": "a", "on_limit": on_limit})
    assert policy.to_ojs()["on_limit"] == on_limit
    assert policy.limit().on_limit == on_limit


def test_S27_the_action_is_wait_unless_another_is_named():
    assert RateLimitPolicy("a").on_limit == "wait"
    assert RateLimitPolicy.from_ojs({"key": "a"}).on_limit == "wait"
    assert RateLimitPolicy("a").to_ojs() == {"key": "a", "on_limit": "wait"}
    assert Limit("a").on_limit == "wait"


def test_S29_a_key_is_static_or_made_from_the_task_and_arrives_as_it_stands():
    policy = RateLimitPolicy("customer:{args.customer}", 2, "9/PT1M", "1/PT1S", "drop")
    values = KeyValues("shop.t", argument={"customer": 42}.get)
    assert policy.template.resolve(values) == ("customer:42", False)
    assert policy.limit("customer:42") == Limit(
        "customer:42",
        concurrency=2,
        rate=((9, 60_000),),
        throttle=((1, 1_000),),
        on_limit="drop",
        private=False,
    )
    tenant = KeyValues("shop.t", tenant="7")
    assert RateLimitPolicy("t:{tenant}").template.resolve(tenant) == ("t:7", True)
    expected = f"key: expected {KEY_EXPECTED}, without fields, got: 'customer:{{args.customer}}'"
    assert problems_of(policy.to_ojs) == (expected,)
    assert problems_of(RateLimitPolicy.from_ojs, {"key": policy.key}) == (expected,)


def test_a_missing_value_is_an_error_or_empty_as_the_policy_says():
    values = KeyValues("shop.t", argument={}.get)
    with pytest.raises(KeyMissing):
        RateLimitPolicy("c:{args.customer}").template.resolve(values)
    empty = RateLimitPolicy("c:{args.customer}", missing="empty")
    assert empty.template.resolve(values) == ("c:", False)


def test_every_problem_of_a_policy_is_named_in_one_error():
    names = [
        problem.partition(":")[0]
        for problem in problems_of(RateLimitPolicy, "_", -1, "x", "0/PT1M", "wiat", "zero")
    ]
    assert names == ["missing", "key", "concurrency", "rate", "throttle.limit", "on_limit"]
    obj = {
        "key": "a{",
        "concurency": 5,
        "concurrency": -1,
        "rate": {"limit": 5, "period": 60},
        "throttle": [],
        "on_limit": 3,
    }
    names = [p.partition(":")[0] for p in problems_of(RateLimitPolicy.from_ojs, obj)]
    assert names == ["key", "rate_limit", "concurrency", "rate.period", "throttle", "on_limit"]


policies = st.builds(
    RateLimitPolicy,
    key=st.from_regex(r"\A[a-zA-Z0-9][a-zA-Z0-9._:-]{0,20}\Z"),
    concurrency=st.none() | st.integers(0, 1_000_000),
    rate=st.none() | rates,
    throttle=st.none() | rates,
    on_limit=st.sampled_from(ACTIONS),
)


@given(policies)
@settings(max_examples=examples(300))
def test_S15_what_is_written_is_read_back(policy):
    written = json.loads(json.dumps(policy.to_ojs()))
    assert None not in written.values()
    assert RateLimitPolicy.from_ojs(written) == policy
    assert written == RateLimitPolicy.from_ojs(written).to_ojs()


declared = st.builds(
    RateLimitPolicy,
    key=st.sampled_from(["api", "a:{args.order.id}", "t:{tenant}-{queue}", "k:{task}.{tier}"]),
    concurrency=st.none() | st.integers(0, 1_000_000),
    rate=st.none() | rates,
    throttle=st.none() | rates,
    on_limit=st.sampled_from(ACTIONS),
    missing=st.sampled_from(["error", "empty"]),
)


@given(declared)
@settings(max_examples=examples(100))
def test_what_kombu_writes_into_a_message_is_read_back_as_an_equal_policy(policy):
    written = loads(dumps([policy]))
    assert read_policies(written) == (policy,)
    assert ("missing" in written[0]) == (policy.missing == "empty")


def test_what_a_missing_value_is_can_be_said_only_where_the_key_may_have_fields():
    written = {"key": "a:{args.b}", "missing": "empty"}
    policy = RateLimitPolicy("a:{args.b}", missing="empty")
    assert RateLimitPolicy.from_ojs(written, templates=True) == policy
    problems = problems_of(RateLimitPolicy.from_ojs, {**written, "missing": "x"}, templates=True)
    assert problems == ("missing: expected 'error' or 'empty', got: 'x'",)
    (problem,) = problems_of(RateLimitPolicy.from_ojs, {"key": "a", "missing": "empty"})
    assert problem.startswith("rate_limit: expected fields of key, ")


@given(policies)
@settings(max_examples=examples(50))
def test_a_policy_is_one_value(policy):
    for again in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        assert again == policy
        assert hash(again) == hash(policy)
        assert again.limit() == policy.limit()
    changed = dataclasses.replace(policy, key="other", rate="7/PT1S")
    assert (changed.key, changed.rate, changed.throttle) == ("other", Rate(7, 1), policy.throttle)
    assert changed.template.text == "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.concurrency = 5


def test_one_limit_for_each_key_with_the_strictest_of_each_number():
    assert merge(
        [
            Limit(
                "a", concurrency=5, rate=((10, 1_000),), throttle=((10, 1_000),), on_limit="wait"
            ),
            Limit("b", on_limit="reschedule"),
            Limit(
                "a", rate=((100, 60_000), (200, 60_000)), throttle=((30, 60_000),), on_limit="drop"
            ),
            Limit(
                "a",
                concurrency=3,
                rate=((11, 1_000), (9, 500)),
                throttle=((1, 100),),
                on_limit="reschedule",
            ),
        ]
    ) == (
        Limit(
            "a",
            concurrency=3,
            rate=((9, 500), (10, 1_000), (100, 60_000)),
            throttle=((30, 60_000),),
            on_limit="drop",
        ),
        Limit("b", on_limit="reschedule"),
    )


def test_private_limits_come_first_and_then_the_order_is_that_of_the_keys():
    limits = [Limit("b"), Limit("z", private=True), Limit("a"), Limit("c", private=True)]
    assert [limit.key for limit in merge(limits)] == ["c", "z", "a", "b"]
    # One of two says so: only tasks of one tenant can have the key.
    assert merge([Limit("a"), Limit("a", private=True)]) == (Limit("a", private=True),)


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        # As much in a longer period says more.
        ((5, 60_000), (5, 1_000), ((5, 60_000),)),
        ((4, 60_000), (5, 60_000), ((4, 60_000),)),
        ((4, 60_000), (5, 1_000), ((4, 60_000),)),
        ((5, 60_000), (5, 60_000), ((5, 60_000),)),
        # Neither implies the other: five in a second may be too many, and so may 60 in a minute.
        ((60, 60_000), (5, 1_000), ((5, 1_000), (60, 60_000))),
    ],
)
def test_a_window_that_another_implies_is_left_out(one, other, kept):
    for pair in ((one, other), (other, one)):
        assert merge([Limit("a", rate=pair)]) == (Limit("a", rate=kept),)
        assert merge([Limit("a", rate=(each,)) for each in pair]) == (Limit("a", rate=kept),)


def test_two_throttles_of_one_spacing_are_one_whatever_their_order():
    same = ((1, 1_000), (10, 10_000), (60, 60_000))
    for order in itertools.permutations(same):
        assert merge([Limit("a", throttle=(each,)) for each in order]) == (
            Limit("a", throttle=((1, 1_000),)),
        )


def test_spacings_that_floats_do_not_tell_apart_are_told_apart():
    wider, narrower = (1_000_000, 31_620_999_999), (999_999, 31_620_968_378)
    spacings = [Fraction(each[1], each[0]) for each in (wider, narrower)]
    assert spacings[0] > spacings[1]
    assert float(spacings[0]) == float(spacings[1])
    assert merge(Limit("a", throttle=(each,)) for each in (narrower, wider)) == (
        Limit("a", throttle=(wider,)),
    )


def test_limits_of_many_tasks_merge_and_one_task_has_at_most_16():
    limits = [Limit(f"k{n:02}") for n in range(MAX_LIMITS + 1)]
    assert merge(limits + limits) == tuple(limits)
    assert merge([]) == ()
    keys = {limit.key for limit in limits}
    assert problems_of(check_keys, keys) == ("limits: expected at most 16 keys a task, got: 17",)
    check_keys(keys - {"k00"})


few_windows = st.tuples(st.integers(1, 6), st.sampled_from([500, 1_000, 2_000, 60_000]))
windows = few_windows | rates.map(lambda rate: rate.window)
limits = st.lists(
    st.builds(
        Limit,
        key=st.sampled_from("abc"),
        concurrency=st.none() | st.integers(0, 5),
        rate=st.lists(windows, max_size=3).map(tuple),
        throttle=st.none() | windows.map(lambda window: (window,)),
        on_limit=st.sampled_from(ACTIONS),
        private=st.booleans(),
    ),
    max_size=6,
)


def implies(one, other):
    return one[0] <= other[0] and one[1] >= other[1]


@given(limits, st.randoms(), st.integers(0, 6))
@settings(max_examples=examples(300))
def test_a_merge_depends_neither_on_the_order_nor_on_what_was_merged_before(
    given_limits, random, cut
):
    merged = merge(given_limits)
    shuffled = random.sample(given_limits, len(given_limits))
    assert merge(shuffled) == merged
    assert merge(merged) == merged
    assert merge([*merge(given_limits[:cut]), *merge(given_limits[cut:])]) == merged
    assert {limit.key for limit in merged} == {limit.key for limit in given_limits}


@given(limits)
@settings(max_examples=examples(300))
def test_a_merged_limit_is_as_strict_as_each_and_no_stricter(given_limits):
    for limit in merge(given_limits):
        same = [each for each in given_limits if each.key == limit.key]
        numbers = [each["concurrency"] for each in same if each["concurrency"] is not None]
        assert limit["concurrency"] == (min(numbers) if numbers else None)
        rates = limit["rate"] or ()
        given = [rate for each in same for rate in each["rate"] or ()]
        assert set(rates) <= set(given)
        assert all(any(implies(kept, rate) for kept in rates) for rate in given)
        assert not any(implies(a, b) for a, b in itertools.permutations(rates, 2))
        assert list(rates) == sorted(rates, key=lambda rate: rate[1])
        throttles = [each["throttle"][0] for each in same if each["throttle"] is not None]
        if throttles:
            widest = max(Fraction(each[1], each[0]) for each in throttles)
            ((starts, period_ms),) = limit["throttle"]
            assert (starts, period_ms) in throttles
            assert Fraction(period_ms, starts) == widest
        else:
            assert limit["throttle"] is None
        assert limit.on_limit == max((each.on_limit for each in same), key=ACTIONS.index)
        assert limit.private == any(each.private for each in same)


@pytest.mark.parametrize(
    "job",
    [
        {"rate_limit": {"key": "a", "concurrency": 2}},
        {"type": "shop.t", "args": [], "options": {"rate_limit": {"key": "a", "concurrency": 2}}},
        {"options": {"queue": "q"}, "rate_limit": {"key": "a", "concurrency": 2}},
        {"options": None, "rate_limit": {"key": "a", "concurrency": 2}},
        {
            "options": {"rate_limit": {"key": "a", "concurrency": 2}},
            "rate_limit": {"concurrency": 2, "key": "a"},
        },
    ],
)
def test_D01_the_policy_of_a_job_stands_in_its_options_or_beside_them(job):
    assert RateLimitPolicy.from_ojs(job) == RateLimitPolicy("a", 2)


def test_D01_two_policies_of_a_job_that_differ_are_an_error():
    job = {"options": {"rate_limit": {"key": "a"}}, "rate_limit": {"key": "b"}}
    (problem,) = problems_of(RateLimitPolicy.from_ojs, job)
    assert problem == (
        "rate_limit: expected the same policy as options.rate_limit, or one of the two, "
        "got: {'key': 'b'}"
    )


def test_D01_a_policy_of_a_job_that_is_wrong_is_named():
    (problem,) = problems_of(RateLimitPolicy.from_ojs, {"rate_limit": 5})
    assert problem == "rate_limit: expected an object, got: 5"


AMOUNT = "a whole number from 1 to 1000000000, or an argument such as 'args.size', or None (1)"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"units": 0}, f"units: expected {AMOUNT}, got: 0"),
        ({"units": "estimate"}, f"units: expected {AMOUNT}, got: 'estimate'"),
        ({"units": 101}, "units: expected at most the rate of the policy, 100, got: 101"),
        ({"units": 5, "rate": None}, "units: expected a rate in the same policy, got: none"),
        ({"units": "args.n", "rate": None}, "units: expected a rate in the same policy, got: none"),
    ],
)
def test_units_that_are_no_amount_of_the_rate_are_a_problem(fields, problem):
    given = {"rate": "100/m", **fields}
    assert problems_of(lambda: RateLimitPolicy("tokens", **given)) == (problem,)


SLOTS = "a whole number from 1 to 1000000, or an argument such as 'args.size', or None (1)"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"slots": 0}, f"slots: expected {SLOTS}, got: 0"),
        ({"slots": 1_000_001}, f"slots: expected {SLOTS}, got: 1000001"),
        ({"slots": 81}, "slots: expected at most the concurrency of the policy, 80, got: 81"),
        (
            {"slots": 2, "concurrency": None, "rate": "9/m"},
            "slots: expected a concurrency in the same policy, got: none",
        ),
    ],
)
def test_slots_that_are_no_amount_of_the_concurrency_are_a_problem(fields, problem):
    given = {"concurrency": 80, **fields}
    assert problems_of(lambda: RateLimitPolicy("gpu", **given)) == (problem,)


def test_a_lease_has_what_its_task_takes_behind_each_key():
    limits = [
        Limit("gpu", concurrency=80, slots=100),
        Limit("db", concurrency=5, slots=2, rate=((9, 1_000),), units=3),
        Limit("plain", concurrency=5),
    ]
    words = [key_with_amounts(limit) for limit in limits]
    assert words == ["gpu*S80", "db*S2;U3", "plain"]
    assert keys_of_lease(",".join(["tenant:a", *words])) == ["tenant:a", "gpu", "db", "plain"]


def test_an_amount_may_be_an_argument_and_travels_in_a_canvas():
    policy = RateLimitPolicy("tokens", rate="100/m", units="args.order.size")
    assert policy.amounts == {"units": "order.size"}
    assert read_policies([loads(dumps(policy))]) == (policy,)
    # A process that declares it does not know the number of a task.
    assert policy.limit() == Limit("tokens", rate=((100, 60_000),))


def test_a_message_has_the_number_of_its_task_and_not_an_argument():
    ojs = {"key": "tokens", "rate": {"limit": 100, "period": "PT1M"}}
    policy = RateLimitPolicy.from_ojs({**ojs, "units": 5_000})
    assert policy.limit() == Limit("tokens", rate=((100, 60_000),), units=5_000)
    assert problems_of(RateLimitPolicy.from_ojs, {**ojs, "units": "args.n"}) == (
        "units: expected a whole number, got: 'args.n'",
    )
    assert problems_of(RateLimitPolicy.from_ojs, {"key": "tokens", "units": 5}) == (
        "units: expected a rate in the same policy, got: none",
    )


def test_units_are_no_number_of_the_key_and_the_larger_ones_count():
    limits = [RateLimitPolicy("tokens", rate="100/m", units=units).limit() for units in (2, 9, 1)]
    (merged,) = merge(limits)
    assert merged.text == "tokens|R100/60000;U9|w"
    assert [each.name for each in (*limits, merged)] == ["tokens|R#"] * 4
    # A start that takes 1 has no text of its own.
    assert limits[2].text == "tokens|R100/60000|w"
