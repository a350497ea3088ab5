from __future__ import annotations

import logging

import pytest
from django.db import connection
from django_celery_fairness.models import TenantTier, Tier, UnpublishedChange
from django_celery_fairness.receivers import worker_starts

from tests.support.parts import parts_of

pytestmark = pytest.mark.django_db


class Worker:
    def __init__(self, app):
        self.app = app


def start(app) -> None:
    worker_starts(sender=Worker(app))


def test_a_starting_worker_publishes_what_the_database_says(fairness, acme):
    Tier.objects.filter(name="pro").update(concurrency=8)
    TenantTier.objects.update(concurrency=6)
    # The test's transaction is never committed, so nothing is published yet.
    assert fairness.limits.inspect("tenant:acme").limit == 3
    start(parts_of(fairness).app)
    assert fairness.limits.inspect("tenant:acme").limit == 6
    assert not UnpublishedChange.objects.exists()


def test_redis_away_does_not_keep_a_worker_from_starting(fairness, redis_away, caplog):
    with caplog.at_level(logging.ERROR, "celery_fairness"):
        start(parts_of(fairness).app)
    assert "of the database could not be published, it is tried again" in caplog.text
    assert "does not answer" in caplog.text


def test_a_database_without_tables_does_not_keep_a_worker_from_starting(
    fairness, monkeypatch, caplog
):
    monkeypatch.setattr(Tier._meta, "db_table", "not_migrated_yet")
    start(parts_of(fairness).app)
    assert "of the database could not be published, it is tried again" in caplog.text


def test_a_worker_without_fairness_is_left_alone(unwired, django_assert_num_queries, caplog):
    with django_assert_num_queries(0):
        start(unwired)
    assert not caplog.records


@pytest.mark.django_db(transaction=True)
def test_no_connection_is_left_open_for_the_pool_to_inherit(fairness):
    connection.close()
    start(parts_of(fairness).app)
    assert connection.connection is None
