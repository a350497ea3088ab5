from __future__ import annotations

import os

import pytest
from django.db import connection

VENDORS = {"sqlite": "sqlite", "postgres": "postgresql"}


@pytest.mark.django_db
def test_the_suite_runs_on_the_database_that_was_asked_for():
    assert connection.vendor == VENDORS[os.environ.get("TEST_DATABASE", "sqlite")]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_celery_fairness_tier")
        assert cursor.fetchone() == (4,)
