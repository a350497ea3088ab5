"""A misspelled option or header is no silent lack of a limit: it is an error, or a warning."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task
from celery.signals import before_task_publish

from celery_fairness import Fairness, FairTask
from celery_fairness.errors import PolicyInvalid, SettingsError, TaskDeclarationError
from tests.integration.conftest import (
    RESULT_SECONDS,
    Shop,
)
from tests.support.waiting import eventually

MISSPELLED: tuple[tuple[str, Any, str], ...] = (
    ("tenent", "user_id", "tenant"),
    ("tennant", "user_id", "tenant"),
    ("Tenant", "user_id", "tenant"),
    ("tenants", lambda args, kwargs: "42", "tenant"),
    ("limit", [{"key": "k", "concurrency": 1}], "limits"),
    ("limts", [], "limits"),
    ("servise", "analysis", "service"),
    ("services", "analysis", "service"),
    ("schedule", True, "scheduled"),
    ("sheduled", True, "scheduled"),
)
#: What a user may have, and what it is worth.
OF_USERS: dict[str, Any] = {
    "rate_limit": "10/m",
    "time_limit": 60,
    "soft_time_limit": 50,
    "priority": 5,
    "queue": "jobs",
    "limiter": object(),
    "schedule": 30.0,
    "services": ["mail"],
    "tenancy": "strict",
    "customer_tenant": "c",
    "serialised": True,
    "page_limit": 100,
}


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    """An app of which nothing is run."""
    app = Celery("shop", broker=f"fair{redis_url}", set_as_current=False)
    fairness = Fairness(app, {})
    yield app
    fairness.close()
    app.close()


def register(app: Celery, base: Any = FairTask, **options: Any) -> Any:
    def analyze(repository: str = "", user_id: str | None = None) -> None: ...

    task: Any = app.task(base=base, name="shop.analyze", shared=False, **options)(analyze)
    return task._get_current_object()


@pytest.mark.parametrize(("name", "value", "meant"), MISSPELLED)
def test_a_misspelled_option_is_an_error_at_registration(app, name, value, meant):
    with pytest.raises(TaskDeclarationError, match=f"got: '{name}', did you mean '{meant}'"):
        register(app, **{name: value})


def test_a_misspelled_attribute_of_a_base_class_is_an_error_too(app):
    class Base(FairTask):
        abstract = True
        tenent = "user_id"

    with pytest.raises(TaskDeclarationError, match="did you mean 'tenant'"):
        register(app, Base)


def test_methods_of_users_have_the_names_that_users_like(app):
    class Base(FairTask):
        abstract = True

        def limit(self) -> int:
            return 1

        @property
        def tenants(self) -> list[str]:
            return []

    assert register(app, Base, tenant="user_id").limit() == 1


@pytest.mark.filterwarnings("ignore:.*task attribute is deprecated")
def test_options_of_celery_and_of_users_pass(app):
    celerys = {
        name: value
        for name, value in vars(Task).items()
        if not (name.startswith("_") or name == "name" or hasattr(value, "__get__"))
    }
    assert {"rate_limit", "time_limit", "soft_time_limit", "expires"} <= set(celerys)
    task = register(app, tenant="user_id", **{**celerys, **OF_USERS})
    assert task.tenancy == "strict"
    assert task.rate_limit == "10/m"


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", ["limit", "limts", "Limits", "tenant", "tenent", "service"])
def test_a_call_with_such_an_option_is_an_error(app, name, eager):
    app.conf.task_always_eager = eager
    task = register(app, tenant="user_id")
    with pytest.raises(
        PolicyInvalid, match=f"expected the option 'limits' of a call, got: '{name}'"
    ):
        task.apply_async(("r",), {"user_id": "42"}, **{name: []})


def test_options_of_celery_and_stamps_of_users_pass_in_a_call(app):
    task = register(app, tenant="user_id")
    options: dict[str, Any] = {
        "countdown": 60,
        "expires": 600,
        "priority": 3,
        "time_limit": 60,
        "soft_time_limit": 50,
        "queue": "jobs",
        "headers": {"x_limit": 1},
        "shadow": "s",
        "ignore_result": True,
        "link": [],
        "serializer": "json",
        "compression": "zlib",
        "retry": True,
        "retry_policy": {"max_retries": 1},
        "reply_to": "me",
        "add_to_parent": True,
        "chord": None,
        "argsrepr": "()",
        "my_own": 1,
    }
    task.apply_async(("r",), {"user_id": "42"}, **options)
    stamped = task.s("r", user_id="42")
    stamped.stamp(tenant="42", limit="x")
    stamped.apply_async()
    assert app.connection_for_write().default_channel is not None


def test_a_plain_task_and_send_task_with_such_an_option_are_sent_with_a_warning(app, caplog):
    caplog.set_level(logging.WARNING, "celery_fairness")
    app.send_task("shop.elsewhere", limit=[{"key": "k", "concurrency": 1}], queue="jobs")
    app.send_task("shop.elsewhere", limit=[], queue="jobs")
    assert (
        "task shop.elsewhere was sent with the option 'limit', which has no effect" in caplog.text
    )
    assert len(caplog.records) == 1


@pytest.mark.parametrize("broker", ["fairredis", "redis"])
@pytest.mark.parametrize(
    ("headers", "warning"),
    [
        (
            {"fairness": {"v": 1, "tenent": "42"}},
            "fairness.tenent, did you mean fairness.tenant?",
        ),
        ({"fairnes": {"v": 1, "tenant": "42"}}, "fairnes, did you mean fairness?"),
    ],
)
def test_a_misspelled_header_is_logged_by_the_worker_and_its_task_runs(
    make_shop: Callable[..., Shop],
    broker: str,
    headers: dict[str, Any],
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = make_shop(broker)
    worker = shop.worker(concurrency=1)
    # A producer without this package, on the stock transport: nothing stamps its messages, also no
    # other app of this process.
    monkeypatch.setattr(before_task_publish, "receivers", [])
    with Celery("elsewhere", set_as_current=False) as other:
        other.conf.broker_url = shop.env["CELERY_BROKER_URL"].removeprefix("fair")
        other.conf.result_backend = shop.env["CELERY_RESULT_BACKEND"]
        for _ in range(3):
            other.send_task("shop.work", headers={**headers, "fairy_tale": 1})
    eventually(lambda: len(shop.ledger("end")) == 3, RESULT_SECONDS)
    eventually(lambda: warning in worker.log_text(), RESULT_SECONDS)
    lines = [line for line in worker.log_text().splitlines() if "name that is ignored" in line]
    assert len(lines) == 1
    assert "task shop.work" in lines[0]


def test_a_misspelled_name_of_the_settings_is_an_error(redis_url):
    with Celery("shop", broker=f"fair{redis_url}", set_as_current=False) as app:
        app.conf.fairnes = {"default_tier": "free"}
        fairness = Fairness(app, {})
        with pytest.raises(SettingsError, match="fairness: expected this name, got: 'fairnes'"):
            _ = fairness.settings
        fairness.close()
