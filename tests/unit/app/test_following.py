"""What Celery sends after a task has ended: what is wrong with it is no error of that task.

The tracer sends links, errbacks, the next of a chain and bodies of chords. An error of theirs would
make a failure of a task that did its work; a body that sends something sees its own error.
"""

from __future__ import annotations

import pytest
from celery import chain, chord, group, uuid
from celery.app.trace import build_tracer

from celery_fairness import FairTask, KeyMissing, RateLimitPolicy
from celery_fairness.app.parts import Parts
from celery_fairness.errors import HeaderInvalid, TenantInvalid
from celery_fairness.message.headers import ACCEPTED_HEADER
from tests.unit.message.test_limits import API, API_WIRE

TENANT = RateLimitPolicy("t:{tenant}")


@pytest.fixture
def shop(make_shop, monkeypatch):
    """A shop whose broker is taken for one that claims fairly, with tasks that lack something."""
    monkeypatch.setattr(Parts, "claims_fairly", property(lambda self: True))
    shop = make_shop()

    @shop.task(base=FairTask, name="shop.keyless", limits=[TENANT, API])
    def keyless():
        return None

    @shop.task(base=FairTask, name="shop.tenantless", tenant="user", limits=[API])
    def tenantless(user=4.2):
        return None

    shop.keyless, shop.tenantless = keyless, tenantless
    return shop


@pytest.fixture(params=["plain", "fair"])
def run(request, shop):
    """Run a body as a worker's tracer does, with what its request says, and return its result."""
    base = {} if request.param == "plain" else {"base": FairTask}

    def done():
        return "done"

    def run(body=done, **following):
        task = shop.task(name="shop.first", **base)(body)._get_current_object()
        # The backend in memory is one for the whole process.
        name, task_id = "shop.first", following.pop("id", None) or uuid()
        given = {"id": task_id, "task": name, "retries": 0, "delivery_info": {}, **following}
        build_tracer(name, task, app=shop.app)(task_id, (), {}, given)
        return shop.app.AsyncResult(task_id)

    return run


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("keyless", "task shop.keyless: key 't:{tenant}': {tenant} has no value"),
        ("tenantless", "expected str, int or UUID, got: float"),
    ],
)
@pytest.mark.parametrize("how", ["chain", "callbacks", "two callbacks", "chord"])
def test_a_task_that_did_its_work_is_no_failure(shop, run, caplog, name, problem, how):
    after = getattr(shop, name).si()
    following = {
        "chain": {"chain": [after]},
        "callbacks": {"callbacks": [after]},
        "two callbacks": {"callbacks": [after, after.clone()]},
        "chord": {"chain": [group(shop.keyless.si(), after) | shop.keyless.si()]},
    }
    assert run(**following[how]).state == "SUCCESS"
    sent = [message for message in shop.published() if message.name == f"shop.{name}"]
    assert sent
    for message in sent:
        assert problem in message.fairness["invalid"]
        assert message.fairness["limits"] == [API_WIRE]
    assert problem in caplog.text


def test_limits_of_the_next_are_kept_there_too(shop, run):
    policies = [RateLimitPolicy("mine"), RateLimitPolicy("no:{args.nobody}")]
    assert run(chain=[shop.tenantless.si(None).set(limits=policies)]).state == "SUCCESS"
    message = shop.one()
    assert [each["key"] for each in message.fairness["limits"]] == ["api", "mine"]
    assert "expected one of the task's parameters" in message.fairness["invalid"]
    assert "limits" not in message.properties


def test_a_failure_keeps_its_own_error_whatever_its_errback_lacks(shop, run):
    @shop.task(name="shop.note", base=FairTask, limits=[TENANT])
    def note(task_id):
        return None

    def fail():
        raise LookupError("its own")

    result = run(fail, errbacks=[note.s()])
    assert (result.state, type(result.result)) == ("FAILURE", LookupError)
    assert "{tenant} has no value" in shop.one().fairness["invalid"]


@pytest.mark.parametrize("how", ["chain", "callbacks"])
def test_what_celery_sends_after_a_task_was_accepted_with_it(shop, run, how):
    run(**{how: [shop.tenantless.si()]})
    assert shop.one().headers[ACCEPTED_HEADER] is True


def test_what_a_body_sends_was_not_accepted_before(shop, run):
    def send():
        shop.tenantless.delay("42")

    run(send)
    assert ACCEPTED_HEADER not in shop.one().headers


def test_the_backend_sends_the_body_of_a_chord(shop, run):
    group_id, task_id = uuid(), uuid()
    body = shop.keyless.si()
    shop.app.backend.apply_chord((group_id, [shop.app.AsyncResult(task_id)]), body)
    run(id=task_id, group=group_id, chord=body)
    message = shop.one()
    assert message.headers[ACCEPTED_HEADER] is True
    assert "{tenant} has no value" in message.fairness["invalid"]


def test_the_unlock_task_sends_the_body_of_a_chord(shop, run):
    done = run()
    unlock = shop.app.tasks["celery.chord_unlock"]
    given = {"id": uuid(), "task": unlock.name, "retries": 0, "delivery_info": {}}
    arguments = (uuid(), shop.keyless.si()), {"result": [done.as_tuple()]}
    build_tracer(unlock.name, unlock, app=shop.app)(given["id"], *arguments, given)
    message = shop.one()
    assert message.headers[ACCEPTED_HEADER] is True
    assert "{tenant} has no value" in message.fairness["invalid"]


@pytest.mark.parametrize(
    "send",
    [
        lambda work: work.delay(),
        lambda work: work.si().delay(),
        lambda work: group(work.si(), work.si()).delay(),
        lambda work: chain(work.si(), work.si()).delay(),
        lambda work: chord([work.si(), work.si()])(work.si()),
    ],
)
@pytest.mark.parametrize("name", ["keyless", "tenantless"])
def test_a_body_that_sends_sees_the_error(shop, run, send, name):
    seen = []
    error = KeyMissing if name == "keyless" else TenantInvalid

    def body():
        with pytest.raises(error) as raised:
            send(getattr(shop, name))
        seen.append(raised.value)

    assert run(body).state == "SUCCESS"
    assert len(seen) == 1
    assert shop.published() == []


def test_what_beat_sends_is_not_lost(shop, caplog):
    shop.keyless.apply_async(headers={"celery_beat_task": True})
    assert "{tenant} has no value" in shop.one().fairness["invalid"]
    shop.tenantless.apply_async(headers={"celery_beat_task": True, "fairness": "nonsense"})
    assert shop.one().fairness["limits"] == [API_WIRE]
    with pytest.raises(HeaderInvalid):
        shop.tenantless.apply_async(headers={"fairness": "nonsense"})
