"""sentry-sdk: limits hold beside it, and its errors and traces are those of stock Celery.

It writes a header named ``headers``, which Celery then takes for the headers of the request.
"""

from __future__ import annotations

import threading

import pytest
import sentry_sdk
from conftest import RESULT_SECONDS, working
from sentry_first import SEEN

from celery_fairness import FairTask
from tests.support.waiting import eventually


def test_a_limit_holds_and_each_run_is_in_the_trace_of_its_producer(make_app, path) -> None:
    SEEN.clear()
    app = make_app()
    running, most, lock, step = [], [0], threading.Lock(), threading.Event()

    @app.task(base=FairTask, tenant="user", bind=True, name="foreign.work", max_retries=1)
    def work(self, number, user=None):
        with lock:
            running.append(number)
            most[0] = max(most[0], len(running))
        try:
            # Long enough for a second one to begin beside it, if the limit did not hold.
            step.wait(0.3)
            if number == 1 and not self.request.retries:
                raise self.retry(countdown=0)
            if number == 2:
                raise ValueError("as asked")
            return child.delay().id
        finally:
            with lock:
                running.remove(number)

    @app.task(base=FairTask, bind=True, name="foreign.child")
    def child(self):
        return self.request.fairness["tenant"]

    with working(app, concurrency=3):
        with sentry_sdk.start_transaction(name="web") as web:
            sent = [work.delay(number, user="42") for number in range(3)]
        children = [each.get(timeout=RESULT_SECONDS) for each in sent[:2]]
        with pytest.raises(ValueError, match="as asked"):
            sent[2].get(timeout=RESULT_SECONDS)
        # The tenant of a parent, and of a retry, is found in spite of the nested header.
        assert [app.AsyncResult(each).get(timeout=RESULT_SECONDS) for each in children] == [
            "42"
        ] * 2

        def all_reported():
            errors = [each for each in SEEN if each.get("exception")]
            runs = [each for each in SEEN if each.get("transaction") == "foreign.work"]
            runs = [each for each in runs if each.get("type") == "transaction"]
            assert len(errors) == 1
            assert len(runs) == 4
            assert {each["contexts"]["trace"]["trace_id"] for each in runs} == {web.trace_id}

        eventually(all_reported)
    assert most == [1]
