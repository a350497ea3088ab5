"""Which queue a task goes to, first and again, and that routing never raises."""

from __future__ import annotations

import pytest
from celery import Task

from celery_fairness import FairTask
from celery_fairness.config.tiers import Tier
from celery_fairness.message import headers
from celery_fairness.message.headers import Header, MadeHeader
from tests.support.parts import parts_of

ANALYSIS = {"service": "analysis", "tenant": "user", "base": FairTask}


@pytest.fixture
def routed(make_shop):
    """A shop whose tenant is called like its tier."""
    shop = make_shop({"tier_resolver": lambda tenant: tenant})

    @shop.task(name="shop.analyze", **ANALYSIS)
    def analyze(user=None):
        pass

    shop.analyze = analyze
    return shop


def queue_of(shop, task, args=(), kwargs=None, **options):
    task.apply_async(args, kwargs or {}, **options)
    return shop.one().queue


@pytest.mark.parametrize(
    ("user", "queue"),
    [
        ("free", "analysis_default"),
        ("pro", "analysis_priority"),
        ("pro_plus", "analysis_priority"),
        ("enterprise", "analysis_priority"),
        ("unknown", "analysis_default"),
        (None, "analysis_default"),
        ("", "analysis_default"),
    ],
)
def test_a_task_goes_where_its_tenants_tier_says(routed, user, queue):
    assert queue_of(routed, routed.analyze, (user,)) == queue


def test_a_publish_makes_its_header_once_and_does_not_parse_it(routed, monkeypatch):
    made = []

    def make(cls, values):
        made.append(values)
        return cls(values.to_wire(), values)

    monkeypatch.setattr(MadeHeader, "of", classmethod(make))
    monkeypatch.setattr(headers, "parse_header", None)
    assert queue_of(routed, routed.analyze, ("pro",), limits=[{"key": "k", "concurrency": 1}]) == (
        "analysis_priority"
    )
    assert made == [Header("pro", "pro", "analysis")]


def test_a_route_of_the_user_may_change_a_made_header(routed):
    def charge_another(name, args, kwargs, options, task=None, **_):
        options["headers"]["fairness"].update(tenant="enterprise")

    @routed.task(name="shop.plain", base=FairTask, tenant="user")
    def plain(user=None):
        pass

    routed.app.conf.task_routes = [charge_another]
    plain.delay("pro")
    sent = routed.one().headers["fairness"]
    assert (sent["tenant"], sent["tier"]) == ("enterprise", "enterprise")


def test_a_queue_that_the_caller_gives_wins(routed):
    assert queue_of(routed, routed.analyze, ("pro",), queue="special") == "special"


def test_a_queue_of_the_service_that_the_caller_gives_wins_too(routed):
    assert queue_of(routed, routed.analyze, ("free",), queue="analysis_priority") == (
        "analysis_priority"
    )


def test_a_task_with_a_countdown_keeps_its_class(routed):
    assert queue_of(routed, routed.analyze, ("pro",), countdown=30) == "analysis_priority"


@pytest.mark.parametrize("headers", [{"celery_beat_task": True}])
def test_what_beat_sends_is_scheduled(routed, headers):
    assert queue_of(routed, routed.analyze, ("enterprise",), headers=headers) == (
        "analysis_scheduled"
    )


def test_a_task_can_say_that_it_is_always_scheduled(routed):
    @routed.task(name="shop.nightly", scheduled=True, **ANALYSIS)
    def nightly(user=None):
        pass

    assert queue_of(routed, nightly, ("enterprise",)) == "analysis_scheduled"


def test_a_message_can_say_that_it_is_scheduled(routed):
    header = {"v": 1, "tenant": "enterprise", "scheduled": True}
    assert queue_of(routed, routed.analyze, headers={"fairness": header}) == "analysis_scheduled"


def test_a_task_of_no_service_is_not_routed(routed):
    @routed.task(name="shop.elsewhere", base=FairTask, tenant="user")
    def elsewhere(user=None):
        pass

    assert queue_of(routed, elsewhere, ("pro",)) == "celery"


def test_an_attribute_called_service_of_somebody_elses_task_is_not_ours(routed):
    class Billing(Task):
        abstract = True
        service = "billing"
        scheduled = True

    @routed.task(name="shop.billing", base=Billing)
    def bill():
        pass

    assert queue_of(routed, bill) == "celery"


def test_a_message_from_elsewhere_is_routed_by_its_header(routed):
    header = {"v": 1, "tenant": "pro", "service": "specview"}
    routed.app.send_task("not.known.here", headers={"fairness": header})
    assert routed.one().queue == "specview_priority"


@pytest.mark.parametrize("header", ["nonsense", {"v": 2}, {"v": 1, "service": "a b"}, 3, []])
def test_a_header_that_cannot_be_read_goes_to_the_default_queue(routed, header):
    assert queue_of(routed, routed.analyze, ("pro",), headers={"fairness": header}) == (
        "analysis_default"
    )


def test_published_tiers_decide_the_queue(routed):
    tiers = [Tier("free", 1, queue_class="priority"), Tier("pro", 3)]
    routed.fairness.tenants.publish_tiers(tiers)
    parts_of(routed.fairness).tier_cache.set_version(routed.limiter.config_version())
    parts_of(routed.fairness).tier_cache.tiers()
    assert queue_of(routed, routed.analyze, ("free",)) == "analysis_priority"
    assert queue_of(routed, routed.analyze, ("pro",)) == "analysis_default"


def exploding(*args, **kwargs):
    raise RuntimeError("as asked")


def test_routing_never_raises(routed, monkeypatch, caplog):
    monkeypatch.setattr(parts_of(routed.fairness).stamp, "header", exploding)
    router, task = parts_of(routed.fairness).router, routed.analyze
    assert router(task.name, (), {}, {}, task) == {"queue": "analysis_default"}
    assert router("not.known.here", None, None, {}, None) is None
    assert router.again(task, "analysis_default", {"fairness": {"v": 1, "tenant": "a"}}) is None
    assert "routing of task shop.analyze failed: RuntimeError('as asked')" in caplog.text


@pytest.mark.parametrize("options", [{}, {"headers": None}, {"headers": {}}])
@pytest.mark.parametrize(("args", "kwargs"), [(None, None), ((), {}), ([], None)])
def test_routing_takes_what_celery_leaves_out(routed, options, args, kwargs):
    router = parts_of(routed.fairness).router
    assert router("shop.analyze", args, kwargs, options, routed.analyze) == {
        "queue": "analysis_default"
    }
    assert router("shop.unknown", args, kwargs, options) is None


HEADER = {"v": 1, "tenant": "pro", "service": "analysis"}


@pytest.mark.parametrize(
    ("current", "queue"),
    [
        ("analysis_default", "analysis_priority"),
        ("analysis_priority", "analysis_priority"),
        ("analysis_scheduled", "analysis_priority"),
        ("special", None),
        ("celery", None),
        ("specview_default", None),
        ("", None),
        (None, None),
        # A message that RabbitMQ itself delayed: one digit for each level of the delay.
        ("0." * 27 + "1." + "analysis_default", "analysis_priority"),
        ("0." * 28 + "special", None),
        ("0." * 27 + "analysis_default", None),
    ],
)
def test_again_only_a_message_in_one_of_the_three_queues_moves(routed, current, queue):
    headers = {"fairness": HEADER}
    assert parts_of(routed.fairness).router.again(routed.analyze, current, headers) == queue


def test_again_a_scheduled_task_stays_scheduled(routed):
    headers = {"fairness": {**HEADER, "scheduled": True}}
    again = parts_of(routed.fairness).router.again
    assert again(routed.analyze, "analysis_scheduled", headers) == "analysis_scheduled"


def test_again_a_message_of_another_producer_follows_its_own_service(routed):
    headers = {"fairness": {**HEADER, "service": "specview"}}
    again = parts_of(routed.fairness).router.again
    unknown = Task()
    unknown.name = "other.task"
    assert again(unknown, "specview_default", headers) == "specview_priority"
    assert again(unknown, "analysis_default", headers) is None


@pytest.mark.parametrize("header", ["nonsense", {"v": 9}, 3])
def test_again_a_header_that_cannot_be_read_means_the_default_queue(routed, header):
    again = parts_of(routed.fairness).router.again
    assert again(routed.analyze, "analysis_priority", {"fairness": header}) == "analysis_default"


def test_again_a_message_without_a_header_keeps_to_the_default_queue(routed):
    assert parts_of(routed.fairness).router.again(routed.analyze, "analysis_default", {}) == (
        "analysis_default"
    )
