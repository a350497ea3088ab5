"""The settings of a worker reach Redis, however often a publication fails at first."""

from __future__ import annotations

import logging
import random
import threading

import pytest

from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.settings_publisher import SettingsPublisher
from tests.support.waiting import at_most, eventually


@pytest.fixture
def publisher():
    made = SettingsPublisher(Notices(logging.getLogger("celery_fairness")), again_seconds=0.01)
    yield made
    made.stop()
    eventually(lambda: not made._runs)


class Source:
    """Publishes, and fails as often as told."""

    def __init__(self, fails):
        self.fails, self.tries = fails, 0

    def __call__(self):
        self.tries += 1
        if self.tries <= self.fails:
            raise RuntimeError("no database")


def test_a_source_that_fails_is_tried_until_it_is_published(publisher, caplog):
    caplog.set_level(logging.INFO, "celery_fairness")
    settings, database = Source(0), Source(2)
    publisher.add("settings", settings)
    publisher.add("database", database)
    assert (settings.tries, database.tries) == (1, 1)
    publisher.start()
    eventually(lambda: not publisher._runs)
    assert (settings.tries, database.tries) == (1, 3)
    failed, published = [record.getMessage() for record in caplog.records]
    assert failed.endswith("it is tried again: RuntimeError('no database')")
    assert published == "the tiers and limits of the database are published again"


def test_a_source_is_published_once_more_if_the_memory_is_lost_meanwhile(publisher):
    begun, goes_on, tries = threading.Event(), threading.Event(), []

    def publish():
        tries.append(1)
        if len(tries) == 2:
            begun.set()
            goes_on.wait(at_most(10))

    publisher.add("settings", publish)
    publisher.publish_again()
    assert begun.wait(at_most(10))
    publisher.publish_again()
    goes_on.set()
    eventually(lambda: not publisher._runs)
    assert len(tries) == 3


def test_the_pauses_between_tries_double_up_to_a_minute(monkeypatch):
    pauses = []
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    made = SettingsPublisher(Notices(logging.getLogger("celery_fairness")))
    # Not of the class: threads of other tests may still wait at bells of their own.
    monkeypatch.setattr(made._bell, "wait", pauses.append)
    made.add("settings", Source(7))
    made.start()
    eventually(lambda: not made._runs)
    assert pauses == [5, 10, 20, 40, 60, 60]


def test_a_worker_that_stops_owes_nothing(publisher):
    source = Source(10**9)
    publisher.add("settings", source)
    publisher.start()
    eventually(lambda: source.tries > 2)
    publisher.stop()
    eventually(lambda: not publisher._runs)
    tries = source.tries
    publisher.publish_again()
    assert (publisher._runs, source.tries) == (False, tries)
