"""A task's declared limits where its producer did not know the task."""

from __future__ import annotations

import logging

import pytest

from celery_fairness.config.policy import RateLimitPolicy
from celery_fairness.message.headers import HEADER
from celery_fairness.message.task_options import LimitSource, TenantSource
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.attempt_limits import log_undeclared_limits
from tests.unit.worker.gate.test_gate import World, a_task

API = RateLimitPolicy("api", concurrency=1)
TOLD = (
    "task shop.t[t1] was claimed without the limits that it declares: its producer does not have "
    "them, so they do not apply to it; send them in the header, as "
    "docs/reference/message-headers.md shows"
)
OWN = RateLimitPolicy("of:{tenant}:{args.user}", concurrency=1)


def body(user: str | None = None) -> None:
    """What the task does."""


def task(*policies: RateLimitPolicy) -> object:
    return a_task(
        tenant_source=TenantSource("shop.t", "user", body),
        limit_source=LimitSource("shop.t", policies, body),
        scheduled=False,
        run=body,
    )


@pytest.fixture
def world(clock):
    return World(clock)


def keys(world, declared, header=None, **kwargs):
    request = {"id": "t1"} if header is None else {"id": "t1", HEADER: header}
    return world.gate.attribution(declared, request, (), kwargs).keys


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, "tenant:42,api"),
        ({"v": 1, "tenant": "7"}, "tenant:7,api"),
        ({"v": 1}, "api"),
        ({"v": 1, "tenant": "7", "limits": [{"key": "db", "concurrency": 1}]}, "tenant:7,db"),
        # The sender's word that it has none.
        ({"v": 1, "tenant": "7", "limits": []}, "tenant:7"),
        # What cannot be read does not slip past them.
        ("nonsense", "tenant:_invalid,api"),
        ({"v": 9, "tenant": "7"}, "tenant:_invalid,api"),
        ({"v": 1, "tenant": "7", "limits": "api"}, "tenant:_invalid,api"),
        ({"v": 1, "tenant": 1.5}, "tenant:_invalid,api"),
    ],
)
def test_behind_a_gate_they_hold_as_if_the_producer_had_known_them(world, header, expected):
    assert keys(world, task(API), header, user="42") == expected


def test_their_keys_are_made_from_the_message(world):
    assert keys(world, task(OWN), None, user="42") == "tenant:42,of:42:42"
    assert keys(world, task(OWN), {"v": 1, "tenant": "7"}, user="42") == "tenant:7,of:7:42"


def test_one_whose_key_cannot_be_made_is_said_and_charges_a_tenant_of_its_own(world, caplog):
    assert keys(world, task(OWN, API), {"v": 1}, user="42") == "tenant:_invalid,api"
    assert "{tenant} has no value" in caplog.text


def test_a_task_that_declares_none_is_charged_as_before(world):
    assert keys(world, task(), None, user="42") == "tenant:42"


def test_it_is_rejected_by_them(world):
    held = world.gate.attribution(task(API), {"id": "t0"}, (), {"user": "41"})
    assert held.keys == "tenant:41,api"
    trace = world.gate.wrap(task(API), world.tracer)
    assert trace("t1", (), {"user": "42"}, {"id": "t1"}) == "traced"
    (lease,) = world.ended
    assert lease.key == "tenant:42,api"


@pytest.mark.parametrize(
    ("declared", "header", "said"),
    [
        ((API,), None, True),
        ((API,), {"v": 1, "tenant": "7"}, True),
        ((API,), {"v": 1, "limits": []}, False),
        ((API,), {"v": 1, "limits": [{"key": "api", "concurrency": 1}]}, False),
        ((), None, False),
    ],
)
def test_where_a_claim_was_made_without_them_the_worker_says_so(
    clock, caplog, declared, header, said
):
    notices = Notices(logging.getLogger("celery_fairness"), clock)
    headers = {"id": "t1"} if header is None else {"id": "t1", HEADER: header}
    for _ in range(2):
        log_undeclared_limits(notices, task(*declared), headers)
    assert caplog.messages == [TOLD] * said
