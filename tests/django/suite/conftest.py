"""Django for the tests beside this file: the demo site's settings, on SQLite or PostgreSQL.

Invariant: the settings are read before anything else can change the environment, and name a Redis
that never answers, so no test reaches the Redis of the person who runs it.

Weakness: TEST_DATABASE (sqlite or postgres) chooses for the whole process.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import django
import pytest
from celery import Celery, current_app
from django.db import connection, connections, transaction
from django.db.models import Model, QuerySet
from django.test import Client, TransactionTestCase

from celery_fairness import Fairness
from celery_fairness.config.tenants import tier_key
from celery_fairness.config.tiers import DEFAULT_TIERS
from celery_fairness.control.installation import control_bus
from celery_fairness.limiter.types import Admitted, Lease, SlotRequest
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Waiting
from tests.cli.conftest import Installation
from tests.support.kombu_channel import close_soon
from tests.support.library import call
from tests.support.parts import parts_of
from tests.support.redis_server import RedisServer

ON_POSTGRES = os.environ.get("TEST_DATABASE", "sqlite") == "postgres"
NOWHERE = "redis://127.0.0.1:1/0"

_folder = tempfile.TemporaryDirectory(prefix="fairness-django-")
for name in [name for name in os.environ if name.startswith(("FAIRNESS_", "CELERY_", "DJANGO_"))]:
    del os.environ[name]
os.environ["DJANGO_SETTINGS_MODULE"] = "demo_site.settings"
os.environ["DEMO_SITE_DIR"] = _folder.name
os.environ["CELERY_BROKER_URL"] = NOWHERE
os.environ["DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/site" if ON_POSTGRES else ""
django.setup()

from django.contrib.auth.models import (
    Permission,
    User,
)
from django.contrib.contenttypes.models import ContentType
from django_celery_fairness import live_counts
from django_celery_fairness.models import (
    TenantTier,
    Tier,
    UnpublishedChange,
)

from tests.django.suite.api_client import ApiClient


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ON_POSTGRES:
            item.add_marker("postgres")


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    """A login that takes a quarter of a second on purpose is not what is tested."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def patient_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages wait for their numbers, because a busy machine may stand still for a second."""
    monkeypatch.setattr(live_counts, "PAGE_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker runs that could answer a page, so none needs the time to do so."""
    monkeypatch.setattr(control_bus, "REPLY_SECONDS", 0.05)
    close_soon(monkeypatch)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Point Django at the PostgreSQL of this run, or at a file for SQLite.

    A file, not memory: threads of one test are then as apart as processes are.
    """
    settings = connections["default"].settings_dict
    if ON_POSTGRES:
        server = request.getfixturevalue("postgres_server")
        settings.update(HOST=server.host, PORT=str(server.port), USER=server.user)
    else:
        settings["TEST"]["NAME"] = str(Path(_folder.name) / "test.sqlite3")
    return None


@pytest.fixture(autouse=True, scope="session")
def rows_are_deleted() -> Iterator[None]:
    """After a test with real transactions, delete its rows.

    Django's flush truncates every table and fills two of them again, the types of content and the
    permissions. That takes longer than most of the tests. No test changes these two.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _test: _delete_rows())
        yield


def _delete_rows() -> None:
    kept = {ContentType._meta.db_table, Permission._meta.db_table}
    tables = set(connection.introspection.django_table_names(include_views=False)) - kept
    # At its end the transaction checks the foreign keys, so the order of the tables is free.
    with transaction.atomic(), connection.cursor() as cursor:
        for table in sorted(tables):
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


@pytest.fixture
def wire() -> Iterator[Callable[..., Fairness]]:
    """Make a Celery app with ``Fairness`` the current one, until the test ends."""
    before = current_app._get_current_object()

    def wire(broker: str = NOWHERE, **settings: Any) -> Fairness:
        app = Celery("suite", broker=broker, set_as_current=False)
        settings.setdefault("tier_resolver", "django_celery_fairness.resolver:tier_of")
        app.conf.fairness = settings
        fairness = Fairness(app)
        _make_current(app)
        return fairness

    yield wire
    _make_current(before)


@pytest.fixture
def fairness(wire: Callable[..., Fairness], redis_url: str) -> Fairness:
    """The wired ``Fairness`` of the test, on an empty Redis."""
    return wire(redis_url)


@pytest.fixture
def unwired() -> Iterator[Celery]:
    """A current Celery app without ``Fairness``."""
    before = current_app._get_current_object()
    app = Celery("plain", broker=NOWHERE, set_as_current=False)
    _make_current(app)
    yield app
    _make_current(before)


def _make_current(app: Celery) -> None:
    """In this thread, and in those to come, as a project's one app is."""
    app.set_current()
    app.set_default()


@pytest.fixture
def hold(redis_url: str) -> Callable[..., None]:
    """Take slots of a tenant, as running tasks do."""

    def hold(tenant: str, amount: int, service: str | None = None) -> None:
        fairness = Fairness.of()
        for _ in range(amount):
            lease = Lease(uuid4().hex, tier_key(tenant, service))
            answer = parts_of(fairness).limiter.acquire(SlotRequest(lease, tenant, "pro"))
            assert isinstance(answer, Admitted), answer

    return hold


@pytest.fixture
def boss(client: Any) -> User:
    user = User.objects.create_superuser("boss", password="secret")
    client.force_login(user)
    return user


@pytest.fixture
def clerk(client: Any) -> User:
    """Staff who may look at everything of this app and change nothing."""
    user = User.objects.create_user("clerk", password="secret", is_staff=True)
    app = {"content_type__app_label": "django_celery_fairness"}
    user.user_permissions.set(Permission.objects.filter(codename__startswith="view_", **app))
    client.force_login(user)
    return user


@pytest.fixture
def claiming(wire: Callable[..., Fairness], redis_url: str) -> Fairness:
    """The wired ``Fairness`` of the test, on an empty Redis that is the broker too."""
    return wire(f"fair{redis_url}")


@pytest.fixture
def shop(claiming: Fairness, redis_server: RedisServer) -> Iterator[Installation]:
    """What a producer and a worker of it do, without either."""
    with redis_server.client(decode_responses=True) as client:
        yield Installation(client)


@pytest.fixture
def redis_away(fairness: Fairness, redis_server: RedisServer) -> RedisServer:
    """The test's Redis, killed; ``restart()`` brings it back empty."""
    redis_server.kill()
    return redis_server


def quietly(model: type[Model]) -> QuerySet[Any]:
    """Rows of ``model`` without the queryset that publishes."""
    return QuerySet(model)


@pytest.fixture
def four_tiers(db: None) -> None:
    """The tiers as the migration makes them: a test with real transactions empties every table."""
    if not Tier.objects.exists():
        quietly(Tier).bulk_create(
            Tier(name=tier.name, concurrency=tier.concurrency, queue_class=tier.queue_class)
            for tier in DEFAULT_TIERS.values()
        )
    assert Tier.objects.count() == 4
    assert not UnpublishedChange.objects.exists()


@pytest.fixture
def pro(four_tiers: None) -> Tier:
    """One of them."""
    return Tier.objects.get(name="pro")


@pytest.fixture
def acme(pro: Tier) -> TenantTier:
    """A tenant of that tier, made without a word to Redis."""
    quietly(TenantTier).bulk_create([TenantTier(tenant="acme", tier=pro)])
    return TenantTier.objects.get(tenant="acme")


@pytest.fixture
def api(claiming: Fairness, four_tiers: None) -> ApiClient:
    """A client whose token may write."""
    return ApiClient("write")


@pytest.fixture
def wait_in(redis_server: RedisServer) -> Callable[[str, str], str]:
    """Put a task of a tenant into a queue; return its id."""

    def wait_in(queue: str, tenant: str) -> str:
        tag = str(uuid4())
        header = {"v": 1, "tenant": tenant, "tier": "free"}
        message = json.dumps({"body": "", "headers": {"id": tag, "fairness": header}})
        args = calls.put_args(Waiting(queue, tag, tenant, tier="free", message=message))
        with redis_server.client(decode_responses=True) as client:
            call(client, calls.PUT, "{fairness}:", args)
        return tag

    return wait_in
