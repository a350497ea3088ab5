"""Limits given where no FairTask reads them: ``send_task``, unknown and plain tasks, a retry.

Celery makes a property of the message of every option that it does not know. The signal before the
publish takes the limits out of there; an error in it reaches no caller.
"""

from __future__ import annotations

import pytest
from celery import Celery, chain, group

from celery_fairness import FairTask, PolicyInvalid, RateLimitPolicy
from celery_fairness.app.fairness import Fairness
from celery_fairness.app.parts import Parts
from celery_fairness.errors import TaskDeclarationError
from tests.unit.message.test_limits import API, API_WIRE, attribution_from

ORDER = RateLimitPolicy("order:{args.order}", concurrency=1)
ORDER_WIRE = {"key": "order:7", "concurrency": 1, "on_limit": "wait"}


@pytest.fixture
def shop(make_shop, monkeypatch):
    """A shop whose broker is taken for one that claims fairly, with a plain task."""
    monkeypatch.setattr(Parts, "claims_fairly", property(lambda self: True))
    shop = make_shop(queues=("other",))

    @shop.task(name="shop.plain")
    def plain(order=None):
        return order

    shop.plain = plain
    return shop


def sent(shop):
    """Return the header of the one message, which has no property of ours."""
    message = shop.one()
    assert "limits" not in message.properties
    return message.fairness


@pytest.mark.parametrize(
    "send",
    [
        lambda app, **more: app.send_task("not.known.here", limits=[API], **more),
        lambda app, **more: app.signature("not.known.here").set(limits=[API]).apply_async(**more),
        lambda app, **more: app.tasks["shop.plain"].apply_async(limits=[API], **more),
        lambda app, **more: app.tasks["shop.plain"].si().set(limits=[API_WIRE]).apply_async(**more),
        lambda app, **more: group(app.tasks["shop.plain"].si().set(limits=[API])).apply_async(),
    ],
)
def test_limits_of_what_no_fair_task_sends_are_kept(shop, send):
    send(shop.app)
    header = sent(shop)
    assert header == {"v": 1, "scheduled": False, "cost": 1, "limits": [API_WIRE]}
    assert attribution_from(header).tenant is None


def test_they_are_added_to_a_header_that_is_given(shop):
    given = {"v": 1, "tenant": "42", "limits": [{"key": "more"}]}
    shop.app.send_task("not.known.here", headers={"fairness": given}, limits=[API])
    header = sent(shop)
    assert header["limits"] == [{"key": "more"}, API_WIRE]
    assert header["tenant"] == "42"


@pytest.mark.parametrize("protocol", [1, 2])
def test_they_are_added_to_what_a_task_declares(shop, protocol):
    @shop.task(base=FairTask, tenant="user", name="shop.fair", limits=[API])
    def fair(order, user=None):
        return order

    shop.app.finalize()
    shop.app.conf.task_protocol = protocol
    shop.app.send_task("shop.fair", (7,), {"user": "42"}, limits=[ORDER])
    header = sent(shop)
    assert (header["tenant"], header["limits"]) == ("42", [API_WIRE, ORDER_WIRE])


@pytest.mark.parametrize("claims", [True, False], ids=["dispatch", "gate"])
def test_s29_a_key_is_static_or_made_by_the_client_and_goes_resolved(
    make_shop, monkeypatch, claims
):
    monkeypatch.setattr(Parts, "claims_fairly", property(lambda self: claims))
    shop = make_shop(queues=("other",))

    @shop.task(base=FairTask, tenant="user", name="shop.fair", limits=[API, ORDER])
    def fair(order, user=None):
        return order

    fair.delay(7, user="42")
    header = sent(shop)
    assert header["limits"] == [API_WIRE, ORDER_WIRE]
    assert [each.key for each in attribution_from(header).limits] == [API_WIRE["key"], "order:7"]


def test_a_key_is_made_from_the_arguments_of_a_plain_task_and_from_the_queue(shop):
    policies = [ORDER, RateLimitPolicy("q:{queue}:{task}")]
    shop.plain.apply_async((7,), queue="other", limits=policies)
    assert [each["key"] for each in sent(shop)["limits"]] == ["order:7", "q:other:shop.plain"]


def test_none_and_an_empty_list_are_no_limits(shop):
    for limits in (None, []):
        shop.plain.apply_async(limits=limits)
        header = sent(shop)
        assert header is None or "limits" not in header


@pytest.mark.parametrize(
    ("name", "limits", "problem"),
    [
        (
            "not.known.here",
            [ORDER, API],
            (
                "task not.known.here: limits: expected keys without arguments, as this process "
                "does not know the task's parameters, got: 'order:{args.order}'"
            ),
        ),
        ("shop.plain", [ORDER, API], "task shop.plain: key 'order:{args.order}': {args.order} has"),
        ("shop.plain", [{"key": "a:{args.nobody}"}, API], "expected one of the task's parameters"),
        ("shop.plain", [RateLimitPolicy("t:{tenant}"), API], "{tenant} has no value"),
        ("shop.plain", [5, API], "limits[0]: expected an object, got: 5"),
    ],
)
def test_what_is_wrong_is_said_and_lifts_no_other_limit(shop, caplog, name, limits, problem):
    shop.app.send_task(name, limits=limits)
    header = sent(shop)
    assert header["limits"] == [API_WIRE]
    assert problem[:200] in header["invalid"]
    assert problem in caplog.text
    assert attribution_from(header).tenant == "_invalid"


@pytest.mark.parametrize("limits", [5, "api", {"key": "api"}])
def test_limits_that_are_no_list_are_said(shop, caplog, limits):
    shop.plain.apply_async(limits=limits)
    assert sent(shop)["invalid"].startswith("limits: expected a list of RateLimitPolicy")
    assert "limits: expected a list of RateLimitPolicy" in caplog.text


def test_a_retry_may_add_some_and_is_not_lost_to_a_wrong_one(shop):
    @shop.task(base=FairTask, name="shop.fair", limits=[API])
    def fair(order=None):
        return order

    for limits, keys in (([{"key": "more"}], ["api", "more"]), ([{"key": "a b"}], ["api"])):
        fair.apply_async(retries=1, limits=limits)
        header = sent(shop)
        assert [each["key"] for each in header["limits"]] == keys
        assert ("invalid" in header) == (len(keys) == 1)


def test_celerys_own_tasks_have_none_and_that_is_said(shop, caplog):
    shop.plain.map([1, 2]).apply_async(limits=[API])
    assert sent(shop) is None
    assert "limits of task celery.map are not enforced, it is Celery's own" in caplog.text


def test_where_nobody_keeps_them_that_is_said(make_shop, caplog):
    shop = make_shop()

    @shop.app.task(name="shop.bare", shared=False)
    def bare():
        return None

    bare.apply_async(limits=[API])
    assert "task shop.bare: limits: expected base=FairTask, or a broker at fair" in caplog.text


def test_a_task_that_is_not_known_here_may_be_behind_the_gate(make_shop, caplog):
    shop = make_shop()
    shop.app.send_task("not.known.here", limits=[API])
    assert [each["key"] for each in sent(shop)["limits"]] == ["api"]
    assert "expected base=FairTask" not in caplog.text


def test_a_chain_of_tasks_that_are_not_known_here_carries_them(shop):
    step = shop.app.signature("not.known.here", immutable=True)
    chain(step, step.clone().set(limits=[API])).delay()
    (after,) = shop.one().embedded["chain"]
    shop.app.signature(after).delay()
    assert sent(shop)["limits"] == [API_WIRE]


def nothing():
    pass


DIALECTS = [
    ({"max_per_second": 5}, "max_per_second: expected a key and a throttle"),
    ({"key": "api", "rate": 3, "period": "minute"}, "period: expected it inside rate"),
]


@pytest.mark.parametrize(("dialect", "text"), DIALECTS)
def test_D02_a_dialect_is_an_error_that_names_the_strict_form(shop, dialect, text):
    with pytest.raises(TaskDeclarationError, match=text):
        shop.task(name="shop.dialect", base=FairTask, limits=[dialect])(nothing).apply_async()
    task = shop.task(name="shop.fair", base=FairTask)(nothing)
    with pytest.raises(PolicyInvalid, match=text):
        task.apply_async(limits=[dialect])


def test_declaring_a_task_asks_for_no_settings():
    app = Celery("late", set_as_current=False)
    fairness = Fairness(app, {})
    task = app.task(name="late.fair", base=FairTask, limits=[API], shared=False)(nothing)
    assert task.limit_source.declares
    app.conf.fairness = {"snooze_seconds": 7}
    assert fairness.settings.snooze_seconds == 7
