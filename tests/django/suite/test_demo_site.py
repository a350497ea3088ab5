from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from demo_site.database_url import database_from
from demo_site.load import TIERS, create_tenants, top_up
from demo_site.models import DemoTask
from demo_site.overview import overview
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Count
from django.urls import reverse
from django_celery_fairness.live_counts import LiveCounts
from django_celery_fairness.models import TenantTier, Tier

PROJECT = Path(__file__).resolve().parents[3] / "django_app"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def task(tenant: str, sent: float, started: float | None = None, ended: float | None = None):
    """A task of the ledger, its moments in seconds before now."""

    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else NOW - timedelta(seconds=seconds)

    return DemoTask.objects.create(
        task_id=uuid4(),
        tenant=tenant,
        name="analyze",
        sent_at=at(sent),
        started_at=at(started),
        ended_at=at(ended),
        worker="one@demo",
    )


@pytest.mark.django_db
def test_the_page_counts_tasks_by_tenant_and_state(client, wire):
    wire()
    enterprise = Tier.objects.get(name="enterprise")
    TenantTier.objects.bulk_create([TenantTier(tenant="acme", tier=enterprise, concurrency=2)])
    task("acme", 9)
    task("acme", 9, 4)
    task("acme", 9, 8, 6)
    task("acme", 9, 6, 5)
    task("stranger", 9)
    acme, stranger = overview(NOW, LiveCounts())
    assert "is unknown" in acme.why
    assert (acme.tier, acme.limit, acme.waiting, acme.finished) == ("enterprise", 2, 1, 2)
    assert [(line.worker, line.seconds) for line in acme.running] == [("one", 4.0)]
    assert [line.seconds for line in acme.latest] == [1.0, 2.0]
    assert acme.wait_seconds == 2.0
    assert len(acme.free) == 1
    assert (stranger.tier, stranger.limit, stranger.edit) == ("free", 1, None)
    page = client.get("/tasks/").content.decode()
    assert "acme" in page
    assert reverse("admin:django_celery_fairness_tenanttier_change", args=[acme.edit]) in page


@pytest.mark.django_db
def test_the_page_says_when_limits_are_off_and_stands_without_tasks(client, wire):
    wire(enabled=False)
    page = client.get("/tasks/").content.decode()
    assert "Limits are not enforced" in page
    assert "No tenant yet." in page
    assert client.post("/tasks/").status_code == 405


@pytest.mark.django_db
def test_tenants_of_the_demo_keep_what_a_person_gave_them(wire):
    wire()
    create_tenants()
    TenantTier.objects.filter(tenant="alice").update(concurrency=7)
    create_tenants()
    assert TenantTier.objects.get(tenant="alice").concurrency == 7
    tiers = dict(TenantTier.objects.values_list("tenant", "tier__name"))
    assert tiers == TIERS


@pytest.mark.django_db
def test_the_address_of_the_site_leads_to_the_dashboard(client):
    dashboard = reverse("admin:django_celery_fairness_dashboard_changelist")
    assert client.get("/").url == dashboard
    assert client.get(dashboard).url.startswith(reverse("admin:login"))


@pytest.mark.django_db
def test_the_load_never_grows_and_a_flood_comes_again_when_it_has_drained(claiming):
    def unfinished() -> dict[str, int]:
        rows = DemoTask.objects.filter(ended_at=None).values_list("tenant")
        return dict(rows.annotate(Count("pk")))

    top_up()
    first = unfinished()
    assert first == {"alice": 40, "bob": 6, "carol": 5, "dave": 14, "erin": 5}
    waiting = sum(each.tasks.waiting + each.tasks.later for each in claiming.queues.list())
    assert waiting == sum(first.values())
    last = DemoTask.objects.filter(tenant="alice").latest("sent_at")
    flood = DemoTask.objects.filter(tenant="alice").exclude(pk=last.pk)
    flood.update(ended_at=datetime.now(UTC))
    DemoTask.objects.filter(tenant="dave").update(ended_at=datetime.now(UTC))
    top_up()
    assert unfinished() == first | {"alice": 1}
    DemoTask.objects.filter(pk=last.pk).update(ended_at=datetime.now(UTC))
    top_up()
    assert unfinished() == first


def test_a_database_url_is_read_with_its_parts():
    read = database_from("postgresql://me:p%40ss@db.example:6543/shop?sslmode=require", Path("x"))
    assert read["ENGINE"] == "django.db.backends.postgresql"
    parts = (read["USER"], read["PASSWORD"], read["HOST"], read["PORT"], read["NAME"])
    assert parts == ("me", "p@ss", "db.example", "6543", "shop")
    assert read["OPTIONS"] == {"sslmode": "require"}
    socket = database_from("postgres:///shop?host=/run/postgresql", Path("x"))
    assert (socket["HOST"], socket["PORT"], socket["NAME"]) == ("/run/postgresql", "", "shop")
    assert database_from("sqlite:////tmp/a.sqlite3", Path("x"))["NAME"] == "/tmp/a.sqlite3"
    assert database_from("", Path("/tmp/default"))["NAME"] == "/tmp/default"


@pytest.mark.parametrize("url", ["mysql://me:hunter2@db/shop", "postgresql://me:hunter2@db/", "x"])
def test_a_database_url_that_cannot_be_meant_is_an_error_without_its_password(url):
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL: expected postgresql://") as error:
        database_from(url, Path("x"))
    assert "hunter2" not in str(error.value)


def settings_of(folder: Path, names: str, **variables: str) -> list[str]:
    """Settings as a fresh process reads them."""
    code = f"from demo_site import settings as s; print({names}, sep='\\n')"
    environment = {**os.environ, "DEMO_SITE_DIR": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_secret_key_is_made_once_for_its_owner_alone(tmp_path):
    folder = tmp_path / "site"
    first, debug = settings_of(folder, "s.SECRET_KEY, s.DEBUG")
    assert len(first) >= 50
    assert debug == "False"
    assert settings_of(folder, "s.SECRET_KEY") == [first]
    assert settings_of(tmp_path / "other", "s.SECRET_KEY") != [first]
    assert (folder / "secret_key").stat().st_mode & 0o777 == 0o600
    given = settings_of(folder, "s.SECRET_KEY, s.DEBUG", DJANGO_SECRET_KEY="x", DJANGO_DEBUG="1")
    assert given == ["x", "True"]


def test_processes_that_start_together_agree_on_the_secret_key(tmp_path):
    code = "from demo_site.settings import SECRET_KEY; print(SECRET_KEY)"
    environment = {**os.environ, "DEMO_SITE_DIR": str(tmp_path / "site")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=PROJECT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in started}) == 1
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["secret_key"]
