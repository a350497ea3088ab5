from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext
from django_celery_fairness.models import TenantTier
from django_celery_fairness.resolver import tier_of


def in_a_thread(call):
    """Run ``call`` in a thread of its own; give back its answer, or raise its error."""

    def run():
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(run).result()


@pytest.mark.django_db
def test_it_names_the_tier_in_one_query(acme):
    with CaptureQueriesContext(connection) as queries:
        assert tier_of("acme") == "pro"
    assert len(queries) == 1


@pytest.mark.django_db
def test_a_tenant_without_a_row_has_none():
    assert tier_of("nobody") is None
    assert tier_of("ACME") is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("max_age", "stays_open"), [(0, False), (None, True)])
def test_a_threads_new_connection_is_kept_as_the_project_says(acme, max_age, stays_open):
    def call():
        mine = connections["default"]
        mine.settings_dict = {**mine.settings_dict, "CONN_MAX_AGE": max_age}
        answer = tier_of("acme"), mine.connection is not None
        mine.close()
        return answer

    assert in_a_thread(call) == ("pro", stays_open)


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_was_open_stays_open(acme):
    def call():
        mine = connections["default"]
        mine.ensure_connection()
        before = mine.connection
        answer = tier_of("acme"), mine.connection is before
        mine.close()
        return answer

    assert in_a_thread(call) == ("pro", True)


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_the_server_dropped_is_opened_anew(acme):
    def call():
        mine = connections["default"]
        mine.ensure_connection()
        if mine.vendor == "postgresql":
            with connections.create_connection("default").cursor() as other:
                pid = mine.connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s)", [pid])
                assert other.fetchone() == (True,)
                other.connection.close()
        else:
            # SQLite has no server; a failing first statement stands for one.
            failures = [OperationalError("the server closed the connection")]

            def fail_once(execute, *args):
                if failures:
                    raise failures.pop()
                return execute(*args)

            mine.execute_wrappers.append(fail_once)
        answer = tier_of("acme")
        mine.close()
        return answer

    assert in_a_thread(call) == "pro"


@pytest.mark.django_db(transaction=True)
def test_a_database_that_does_not_answer_is_the_callers_business(acme):
    def call():
        mine = connections["default"]
        mine.settings_dict = {**mine.settings_dict, "NAME": "/nowhere/nothing", "PORT": "1"}
        tier_of("acme")

    with pytest.raises(OperationalError):
        in_a_thread(call)


@pytest.mark.django_db
def test_a_change_is_seen_at_once(acme):
    TenantTier.objects.all().delete()
    assert tier_of("acme") is None
