"""celery-once and celery-singleton: one of a task at a time, and its lock ends with it."""

from __future__ import annotations

import threading

import pytest
from celery_once import AlreadyQueued, QueueOnce
from celery_singleton import Singleton
from conftest import RESULT_SECONDS, working

from celery_fairness import FairTask
from tests.support.waiting import eventually


class FairSingleton(FairTask, Singleton):
    abstract = True


@pytest.mark.parametrize("bases", [(FairTask, QueueOnce), (QueueOnce, FairTask)])
def test_once_refuses_a_second_one_and_runs_what_a_limit_rejected(
    make_app, fairness_server, bases
) -> None:
    app = make_app()
    url = fairness_server.url.removesuffix("/0") + "/4"
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": url}}
    go_on, ran = threading.Event(), []
    base = type("Base", bases, {"abstract": True})

    @app.task(base=base, once={"keys": ["number"]}, tenant="user", name="foreign.once")
    def work(number, user=None):
        assert go_on.wait(RESULT_SECONDS)
        ran.append(number)
        return number

    with working(app):
        sent = [work.delay(number, user="42") for number in (1, 2)]
        with pytest.raises(AlreadyQueued):
            work.delay(2, user="42")
        go_on.set()
        assert [each.get(timeout=RESULT_SECONDS) for each in sent] == [1, 2]

        def sent_again():
            try:
                return work.delay(2, user="42")
            except AlreadyQueued:
                raise AssertionError("the lock has not ended with its task") from None

        # The result is there a moment before the lock is gone.
        assert eventually(sent_again).get(timeout=RESULT_SECONDS) == 2
    # Both wait for one slot, and either may get it first.
    assert sorted(ran) == [1, 2, 2]


def test_singleton_returns_the_one_that_waits(make_app, fairness_server) -> None:
    app = make_app(singleton_backend_url=fairness_server.url.removesuffix("/0") + "/4")
    go_on, ran = threading.Event(), []

    @app.task(base=FairSingleton, tenant="user", name="foreign.single")
    def work(number, user=None):
        assert go_on.wait(RESULT_SECONDS)
        ran.append(number)
        return number

    with working(app):
        sent = [work.delay(number, user="42") for number in (1, 2)]
        assert work.delay(2, user="42").id == sent[1].id
        go_on.set()
        assert [each.get(timeout=RESULT_SECONDS) for each in sent] == [1, 2]

        def sent_again():
            made = work.delay(2, user="42")
            assert made.id != sent[1].id, "the lock has not ended with its task"
            return made

        assert eventually(sent_again).get(timeout=RESULT_SECONDS) == 2
    # Both wait for one slot, and either may get it first.
    assert sorted(ran) == [1, 2, 2]
