"""The limits of a message: declared and called, carried in the header, and what a put is told."""

from __future__ import annotations

import json

import pytest
from celery import chain

from celery_fairness import (
    FairTask,
    KeyInvalid,
    KeyMissing,
    PolicyInvalid,
    RateLimitPolicy,
)
from celery_fairness.app.parts import Parts
from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.settings import build_settings
from celery_fairness.errors import HeaderInvalid, TaskDeclarationError
from celery_fairness.message.attribution import attribution_of
from celery_fairness.message.headers import parse_header
from celery_fairness.message.limits import parse_limits
from celery_fairness.transport.envelope import waiting_of
from tests.support.numbers import listed

API = RateLimitPolicy("api", concurrency=5, rate="100/PT1M")
API_WIRE = {
    "key": "api",
    "concurrency": 5,
    "rate": {"limit": 100, "period": "PT1M"},
    "on_limit": "wait",
}


@pytest.fixture
def shop(make_shop, monkeypatch):
    """A shop whose broker is taken for one that claims fairly."""
    monkeypatch.setattr(Parts, "claims_fairly", property(lambda self: True))
    return make_shop(queues=("other",))


class TestDeclared:
    """What a task declares travels with each of its messages."""

    def test_of_the_task_and_of_the_call(self, shop):
        @shop.task(base=FairTask, tenant="user", name="shop.t", limits=[API])
        def work(order, user=None):
            return user

        called = {"key": "order:{args.order}", "concurrency": 1}
        work.apply_async((7,), {"user": "42"}, limits=[called])
        assert shop.one().fairness["limits"] == [
            API_WIRE,
            {"key": "order:7", "concurrency": 1, "on_limit": "wait"},
        ]

    def test_a_key_may_be_made_from_everything(self, shop):
        key = "k:{tenant}:{tier}:{task}:{queue}:{args.order.number}"

        @shop.task(base=FairTask, tenant="user", name="shop.t", limits=[RateLimitPolicy(key)])
        def work(order, user=None):
            return user

        work.apply_async(({"number": 7},), {"user": "42"}, queue="other")
        made = {"key": "k:42:free:shop.t:other:7", "on_limit": "wait", "private": True}
        assert shop.one().fairness["limits"] == [made]

    def test_what_is_sent_by_its_name_has_them_too(self, shop):
        policy = RateLimitPolicy("of:{queue}")

        @shop.task(base=FairTask, tenant="user", name="shop.t", limits=[policy])
        def work(user=None):
            return user

        shop.app.send_task("shop.t", kwargs={"user": "42"}, queue="other")
        assert [each["key"] for each in shop.one().fairness["limits"]] == ["of:other"]

    def test_a_signature_may_add_some(self, shop):
        @shop.task(base=FairTask, name="shop.t", limits=[API])
        def work():
            return None

        work.si().set(limits=[{"key": "more"}]).delay()
        assert [each["key"] for each in shop.one().fairness["limits"]] == ["api", "more"]
        chain(work.si(), work.si()).delay()
        assert [each["key"] for each in shop.one().fairness["limits"]] == ["api"]

    def test_a_canvas_carries_policies_in_the_messages_before(self, shop):
        @shop.task(base=FairTask, tenant="user", name="shop.t")
        def work(order=None, user=None):
            return user

        policies = [API, RateLimitPolicy("o:{args.order}", missing="empty")]
        last = work.si(None, "42").set(limits=policies)
        chain(work.si("o-1", "42"), work.si("o-2", "42"), last).delay()
        sent = shop.app.signature(json.loads(json.dumps(shop.one().embedded["chain"][0])))
        sent.delay()
        assert [each["key"] for each in shop.one().fairness["limits"]] == ["api", "o:"]

    def test_a_header_that_has_limits_keeps_them(self, shop):
        @shop.task(base=FairTask, name="shop.t", limits=[API])
        def work():
            return None

        given = {"v": 1, "limits": [{"key": "mine"}]}
        work.apply_async(headers={"fairness": given})
        assert shop.one().fairness["limits"] == [{"key": "mine"}]
        work.apply_async(headers={"fairness": {"v": 1, "tenant": "42"}})
        assert shop.one().fairness["limits"] == [API_WIRE]

    def test_an_empty_list_in_the_header_says_that_there_are_none(self, shop):
        @shop.task(base=FairTask, name="shop.t", limits=[API])
        def work():
            return None

        headers = {"fairness": {"v": 1, "limits": []}}
        work.apply_async(headers=headers)
        assert shop.one().fairness["limits"] == []
        shop.app.send_task("shop.t", headers=headers, limits=[{"key": "more"}])
        assert [each["key"] for each in shop.one().fairness["limits"]] == ["more"]

    def test_a_retry_carries_what_it_was_sent_with(self, shop):
        @shop.task(base=FairTask, tenant="user", name="shop.t", limits=[API])
        def work(user=None):
            return user

        header = {"v": 1, "tenant": "42", "limits": [{"key": "before"}]}
        work.push_request(
            args=("42",), kwargs={}, headers={"fairness": header}, called_directly=False, retries=0
        )
        work.signature_from_request(work.request, retries=1).apply_async()
        work.pop_request()
        assert shop.one().fairness["limits"] == [{"key": "before"}]

    def test_a_task_without_limits_has_no_field(self, shop):
        @shop.task(base=FairTask, name="shop.t")
        def work():
            return None

        work.delay()
        assert "limits" not in shop.one().fairness


class TestWrong:
    """Whatever cannot be kept is an error that names it."""

    @pytest.mark.parametrize(
        ("option", "problem"),
        [
            (API, "expected a list of RateLimitPolicy"),
            (5, "expected a list of RateLimitPolicy"),
            ([5], "limits[0]: expected an object, got: 5"),
            ([{"concurrency": 1}], "limits[0].key: expected a key"),
            ([API, {"key": "a", "rate": "5/s"}], "limits[1].rate: expected an object"),
            (
                [{"key": "a", "conurrency": 1}],
                (
                    f"limits[0]: expected fields of key, {listed('policy')}, on_limit, "
                    "missing, got: 'conurrency', did you mean 'concurrency'?"
                ),
            ),
            ([{"key": "k:{args.ordr}"}], "expected one of the task's parameters (order)"),
            (
                [RateLimitPolicy(f"k{number}") for number in range(17)],
                "expected at most 16 keys a task, got: 17",
            ),
        ],
    )
    def test_an_option_of_a_task(self, shop, option, problem):
        @shop.task(base=FairTask, name="shop.t", limits=option)
        def work(order):
            return order

        # A task is made when it is first used.
        with pytest.raises(TaskDeclarationError) as raised:
            shop.app.finalize()
        assert problem in str(raised.value)
        assert "shop.t" in str(raised.value)

    def test_an_option_of_a_call(self, shop):
        @shop.task(base=FairTask, name="shop.t")
        def work(order=None):
            return order

        for option, error in (
            (5, PolicyInvalid),
            ([{"key": "a", "concurrency": -1}], PolicyInvalid),
            ([{"key": "a:{args.order}"}], KeyMissing),
            ([{"key": "a:{tenant}"}], KeyMissing),
        ):
            with pytest.raises(error):
                work.apply_async(limits=option)
        with pytest.raises(KeyInvalid):
            work.apply_async((1.5,), limits=[{"key": "a:{args.order}"}])
        assert shop.published() == []

    def test_more_than_16_keys_of_task_and_call(self, shop):
        many = [RateLimitPolicy(f"k{number}") for number in range(16)]

        @shop.task(base=FairTask, name="shop.t", limits=many)
        def work():
            return None

        work.apply_async(limits=[{"key": "k0"}])
        with pytest.raises(PolicyInvalid, match="at most 16 keys a task, got: 17"):
            work.apply_async(limits=[{"key": "k16"}])

    def test_more_than_16_keys_of_header_and_call(self, shop):
        @shop.task(base=FairTask, name="shop.t")
        def work():
            return None

        carried = [{"key": f"k{number}"} for number in range(16)]
        headers = {"fairness": {"v": 1, "limits": carried}}
        work.apply_async(headers=headers, limits=[{"key": "k3", "concurrency": 1}])
        assert len(parse_header(shop.one().fairness).limits) == 16
        with pytest.raises(PolicyInvalid, match="at most 16 keys a task, got: 17"):
            work.apply_async(headers=headers, limits=[{"key": "k16"}])

    def test_policies_of_one_key_are_one_limit_however_many(self, shop):
        policies = [RateLimitPolicy("k", concurrency=number) for number in range(1, 18)]

        @shop.task(base=FairTask, name="shop.t", limits=policies)
        def work():
            return None

        work.delay()
        assert parse_header(shop.one().fairness).limits == (Limit("k", concurrency=1),)
        with pytest.raises(HeaderInvalid, match="at most 16384 bytes of JSON"):
            work.apply_async(limits=[{"key": "k"}] * 1000)

    def test_what_is_sent_by_its_name_without_an_argument_is_invalid_and_not_lost(self, shop):
        policy = RateLimitPolicy("order:{args.order}")

        @shop.task(base=FairTask, name="shop.t", limits=[policy])
        def work(order=None):
            return order

        shop.app.send_task("shop.t")
        assert "order:{args.order}" in shop.one().fairness["invalid"]

    def test_a_key_that_cannot_be_made_where_nobody_sees_it_lifts_no_other_limit(self, shop):
        limits = [RateLimitPolicy("order:{args.order}"), API, RateLimitPolicy("t:{tenant}")]

        @shop.task(base=FairTask, name="shop.t", limits=limits)
        def work(order=None):
            return order

        shop.app.send_task("shop.t")
        header = shop.one().fairness
        assert header["limits"] == [API_WIRE]
        assert "order:{args.order}" in header["invalid"]
        assert attribution_from(header).limits == parse_limits([API_WIRE])
        assert attribution_from(header).tenant == "_invalid"

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ("nonsense", "header 'fairness': expected an object, to put limits into, got: 'nons"),
            ([], "header 'fairness': expected an object, to put limits into, got: []"),
            ({"v": 1, "limits": 5}, "header 'fairness': limits: expected a list of policies, got"),
            ({"v": 1, "limits": None}, "header 'fairness': limits: expected a list of policies,"),
        ],
    )
    def test_a_header_that_cannot_carry_limits_does_not_lose_them(self, shop, given, problem):
        @shop.task(base=FairTask, name="shop.t", limits=[API])
        def work():
            return None

        @shop.task(base=FairTask, name="shop.none")
        def none():
            return None

        headers = {"fairness": given}
        for call in (work.apply_async, lambda **more: none.apply_async(limits=[API], **more)):
            with pytest.raises(HeaderInvalid) as raised:
                call(headers=headers)
            assert str(raised.value).startswith(problem)
        assert shop.published() == []
        # Nobody sees an error there: the limits are kept, and the header says what was wrong.
        shop.app.send_task("shop.t", headers=headers)
        header = shop.one().fairness
        assert header["limits"] == [API_WIRE]
        assert header["invalid"].startswith(problem)
        assert attribution_from(header).tenant == "_invalid"
        # Without any limits the header is as it was given.
        none.apply_async(headers=headers)
        assert shop.one().fairness == given

    @pytest.mark.parametrize(("before", "after"), [("no tenant", "no tenant"), (3, "header 'fair")])
    def test_what_was_wrong_before_is_still_said(self, shop, before, after):
        @shop.task(base=FairTask, name="shop.t", limits=[API])
        def work():
            return None

        given = {"v": 1, "invalid": before, "limits": 5}
        shop.app.send_task("shop.t", headers={"fairness": given})
        assert shop.one().fairness["invalid"].startswith(after)

    def test_an_eager_task_finds_what_sending_would_find(self, make_shop):
        shop = make_shop(conf={"task_always_eager": True})
        limits = [RateLimitPolicy("k:{tenant}:{tier}:{task}:{queue}:{args.order}")]

        @shop.task(base=FairTask, tenant="user", name="shop.t", limits=limits)
        def work(order=None, user=None):
            return order

        @shop.task(base=FairTask, name="shop.parent")
        def parent():
            # Where it is sent, its tenant would be that of its parent.
            return work.delay(7).get(disable_sync_subtasks=False)

        assert work.delay(7, "42").get() == 7
        assert parent.delay().get() == 7
        assert work.apply_async((7, "42"), limits=[API]).get() == 7
        for headers in ({}, {"fairness": {"v": 1, "tenant": "42"}}):
            assert work.apply_async((7, "42"), headers=headers).get() == 7
        for args, options, error in (
            ((None, "42"), {}, KeyMissing),
            ((7,), {}, KeyMissing),
            ((1.5, "42"), {}, KeyInvalid),
            ((7, "42"), {"limits": [{"key": "a b"}]}, PolicyInvalid),
            ((7, "42"), {"limits": [{"key": "a:{args.nobody}"}]}, TaskDeclarationError),
            ((7,), {"headers": {"fairness": {"v": 1}}}, KeyMissing),
            ((7,), {"headers": {"fairness": "nonsense"}}, HeaderInvalid),
        ):
            with pytest.raises(error):
                work.apply_async(args, **options)
        # A link is sent by Celery: it is no error of the task before.
        assert work.apply_async((7, "42"), link=work.si()).get() == 7

    def test_a_broker_that_does_not_claim_is_sent_them_for_the_gate(self, make_shop):
        shop = make_shop()

        @shop.app.task(base=FairTask, name="shop.gated", limits=[API])
        def work():
            return None

        work.delay()
        assert [each["key"] for each in shop.one().headers["fairness"]["limits"]] == ["api"]


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (None, "limits: expected a list of policies, got: None"),
        ("api", "limits: expected a list of policies, got: 'api'"),
        ({"key": "api"}, "limits: expected a list of policies"),
        ([None], "limits[0]: expected an object, got: None"),
        ([{"key": "a", "rat": 1}], "limits[0]: expected fields of key, "),
        ([{"key": "a"}, {"key": "a b"}], "limits[1].key: expected letters"),
        ([{"key": "a:{tenant}"}], "limits[0].key: expected"),
        ([{"key": "a", "concurrency": True}], "limits[0].concurrency: expected"),
        ([{"key": "a", "concurrency": 1.0}], "limits[0].concurrency: expected"),
        ([{"key": "a", "private": 1}], "limits[0].private: expected true or false, got: 1"),
        ([{"key": "a", "rate": {"limit": 0, "period": "PT1S"}}], "limits[0].rate"),
        ([{"key": "a", "rate": {"limit": 1, "period": "PT1X"}}], "limits[0].rate.period"),
        ([{"key": "a", "on_limit": "block"}], "limits[0].on_limit: expected 'wait'"),
        ([{"key": object()}], "expected fields that JSON can hold"),
        ([{"key": f"k{number}"} for number in range(17)], "at most 16 keys a task, got: 17"),
    ],
)
def test_a_header_whose_limits_cannot_be_read(limits, problem):
    with pytest.raises(HeaderInvalid) as raised:
        parse_header({"v": 1, "limits": limits})
    assert problem in str(raised.value)


def test_limits_of_one_key_are_one_and_private_ones_stand_first():
    wire = [
        {"key": "b", "concurrency": 3},
        {"key": "b", "concurrency": 2, "rate": {"limit": 5, "period": "PT1S"}},
        {"key": "c:42", "throttle": {"limit": 1, "period": "PT2S"}, "private": True},
    ]
    limits = parse_limits(wire)
    assert limits == (
        Limit("c:42", throttle=((1, 2_000),), private=True),
        Limit("b", concurrency=2, rate=((5, 1_000),)),
    )
    assert write_limits(limits) == "c:42|T1/2000|wp,b|C2;R5/1000|w"


class TestPut:
    """What the scheduler is told."""

    @pytest.mark.parametrize("tenant", ["42", None])
    def test_a_task_is_put_with_its_limits(self, tenant):
        header = {"v": 1, "tenant": tenant, "limits": [API_WIRE]}
        assert self.put(header).limits == "api|C5;R100/60000|w"

    def test_one_whose_header_cannot_be_read_is_charged_to_a_tenant_of_its_own(self):
        waiting = self.put({"v": 1, "tenant": "42", "limits": 5})
        assert (waiting.tenant, waiting.limits) == ("_invalid", "")

    def test_the_tenant_may_be_wrong_and_the_limits_right(self):
        waiting = self.put({"v": 1, "invalid": "no tenant", "limits": [API_WIRE]})
        assert (waiting.tenant, waiting.limits) == ("_invalid", "api|C5;R100/60000|w")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"v": 2},
            {"v": None},
            {"tenant": 4.2},
            {"tier": 7},
            {"service": 7},
            {"scheduled": 1},
            {"cost": -1},
            {"invalid": 3},
            {"more": "x" * 20_000},
        ],
    )
    def test_one_wrong_field_lifts_no_limit(self, wrong):
        waiting = self.put({"v": 1, "tenant": "42", "limits": [API_WIRE], **wrong})
        assert (waiting.tenant, waiting.limits) == ("_invalid", "api|C5;R100/60000|w")

    @pytest.mark.parametrize(
        "wrong", [None, 5, {"key": "a b"}, {"key": "api", "concurrency": -1}, {"key": object()}]
    )
    def test_one_wrong_limit_lifts_no_other(self, wrong):
        attribution = attribution_from(
            {"v": 1, "tenant": "42", "limits": [wrong, API_WIRE, {"key": "last"}]}
        )
        assert [limit.key for limit in attribution.limits] == ["api", "last"]
        assert attribution.tenant == "_invalid"
        assert "limits[0]" in attribution.problem or "JSON can hold" in attribution.problem

    def test_of_more_than_16_keys_the_first_hold(self):
        many = [{"key": f"k{number:02}", "concurrency": 1} for number in range(20, 0, -1)]
        attribution = attribution_from(
            {"v": 1, "limits": [*many, {"key": "k20", "concurrency": 0}]}
        )
        assert [limit.key for limit in attribution.limits] == [f"k{n:02}" for n in range(5, 21)]
        assert attribution.limits[-1]["concurrency"] == 0
        assert "at most 16 keys a task, got: 20" in attribution.problem

    def test_tasks_of_celery_s_own_have_none(self):
        assert self.put({"v": 1, "limits": [API_WIRE]}, "celery.chord_unlock").limits == ""

    @staticmethod
    def put(header, name="shop.t"):
        properties = {"delivery_tag": "t", "delivery_info": {"exchange": ""}}
        message = {"headers": {"task": name, "fairness": header}, "properties": properties}
        return waiting_of("q", message, build_settings({}))


def attribution_from(header):
    return attribution_of({"fairness": header}, (), {}, None, build_settings({}))


def test_a_charge_says_the_limits():
    attribution = attribution_from({"v": 1, "tenant": "42", "limits": [API_WIRE]})
    assert attribution.limits == (Limit("api", concurrency=5, rate=((100, 60_000),)),)
