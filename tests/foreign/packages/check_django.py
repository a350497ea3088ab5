"""django-celery-beat sends its entries, and django-celery-results stores each result once."""

from __future__ import annotations

import datetime
import threading

import django
import pytest
from conftest import RESULT_SECONDS, working
from django.conf import settings
from django.core.management import call_command

from celery_fairness import FairTask


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A site with both packages, and a database in a file, which threads share."""
    name = str(tmp_path_factory.mktemp("site") / "db.sqlite3")
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": name}},
        INSTALLED_APPS=["django_celery_beat", "django_celery_results"],
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )
    django.setup()
    call_command("migrate", verbosity=0)


def test_a_rejected_task_has_one_result_and_it_is_there(make_app, path) -> None:
    from django_celery_results.models import TaskResult

    app = make_app(result_backend="django-db", result_extended=True, imports=())
    go_on = threading.Event()

    @app.task(base=FairTask, tenant="user", name="foreign.stored")
    def work(number, user=None):
        assert go_on.wait(RESULT_SECONDS)
        return number

    with working(app):
        sent = [work.delay(number, user="42") for number in (1, 2)]
        go_on.set()
        assert [each.get(timeout=RESULT_SECONDS) for each in sent] == [1, 2]
    rows = TaskResult.objects.filter(task_id__in=[each.id for each in sent])
    assert sorted((row.status, row.result) for row in rows) == [("SUCCESS", "1"), ("SUCCESS", "2")]
    assert {row.task_name for row in rows} == {"foreign.stored"}


def test_beat_sends_an_entry_of_its_table_to_the_tenant_of_its_arguments(make_app, path) -> None:
    from django_celery_beat.models import IntervalSchedule, PeriodicTask
    from django_celery_beat.schedulers import DatabaseScheduler

    app = make_app()

    @app.task(base=FairTask, tenant="user", bind=True, name="foreign.periodic")
    def work(self, user=None):
        return self.request.fairness["tenant"], self.request.periodic_task_name

    every, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.HOURS)
    last = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2)
    PeriodicTask.objects.update_or_create(
        name="hourly",
        defaults={
            "task": "foreign.periodic",
            "interval": every,
            "kwargs": '{"user": "42"}',
            "last_run_at": last,
        },
    )
    scheduler = DatabaseScheduler(app=app)
    with working(app):
        entry = scheduler.schedule["hourly"]
        sent = scheduler.apply_async(entry, advance=False)
        assert sent.get(timeout=RESULT_SECONDS) == ["42", "hourly"]
