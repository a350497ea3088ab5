"""The addresses of the metrics: who may read them, and what they answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.signals import import_modules
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import include, path
from django_celery_fairness import tokens
from prometheus_client.parser import text_string_to_metric_families

from celery_fairness import Fairness, FairTask, RateLimitPolicy, exporter
from tests.cli.conftest import Installation
from tests.support.parts import parts_of

pytestmark = pytest.mark.django_db(transaction=True)

urlpatterns = [path("", include("django_celery_fairness.api.metrics"))]


@pytest.fixture(autouse=True)
def served(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.FAIRNESS_METRICS = True


@pytest.fixture
def ask(claiming: Fairness) -> Callable[..., Any]:
    _, token = tokens.create("prometheus", "read", None)

    def ask(address: str = "/metrics", method: str = "get", **headers: str) -> Any:
        given = {"Authorization": f"Bearer {token}", **headers}
        return getattr(Client(), method)(address, headers=given)

    return ask


def samples(response: Any) -> dict[tuple[str, ...], float]:
    assert response.status_code == 200, response.content
    return {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(response.content.decode())
        for each in family.samples
    }


def test_a_token_reads_the_metrics(shop: Installation, ask: Callable[..., Any]):
    shop.put("42", "t1", tier="free", queue="mail")
    found = samples(ask())
    assert found["fairness_up",] == 1
    assert found["fairness_tasks_startable", "mail"] == 1
    openmetrics = ask(Accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics["Content-Type"].startswith("application/openmetrics-text")
    assert openmetrics.content.endswith(b"# EOF\n")
    assert ask(method="head").status_code == 200


def test_an_autoscaler_reads_the_load_of_a_queue(shop: Installation, ask: Callable[..., Any]):
    shop.put("42", "t1", tier="free", queue="mail")
    one = json.loads(ask("/metrics/autoscale?queue=mail").content)
    assert (one["queue"], one["startable"], one["load"]) == ("mail", 1, 1.0)
    assert one in json.loads(ask("/metrics/autoscale").content)["queues"]


@pytest.mark.parametrize("address", ["/metrics", "/metrics/autoscale"])
def test_only_callers_with_a_name_and_the_permission_read(
    claiming: Fairness, address: str, settings: Any
):
    client = Client()
    for is_on in (True, False):
        settings.FAIRNESS_METRICS = is_on
        assert client.get(address).status_code == 401
        assert client.post(address).status_code in (401, 405)
    settings.FAIRNESS_METRICS = True
    user = User.objects.create_user("ada", password="secret")
    client.force_login(user)
    assert client.get(address).status_code == 403
    user.user_permissions.set(Permission.objects.filter(codename="view_dashboard"))
    assert client.get(address).status_code == 200


def test_without_the_setting_there_is_nothing(ask: Callable[..., Any], settings: Any):
    settings.FAIRNESS_METRICS = False
    assert ask().status_code == 404
    del settings.FAIRNESS_METRICS
    assert ask().status_code == 404


def test_while_redis_is_away_the_metrics_say_so(
    claiming: Fairness, ask: Callable[..., Any], redis_server: Any
):
    assert samples(ask())["fairness_up",] == 1
    redis_server.kill()
    found = samples(ask())
    assert found["fairness_up",] == 0
    assert set(found) == {("fairness_up",), ("fairness_scrape_age_seconds",)}
    assert ask("/metrics/autoscale").status_code == 503


def test_without_fairness_the_answer_names_the_next_step(ask: Callable[..., Any], unwired: object):
    answer = ask()
    assert answer.status_code == 503
    assert "Fairness(app)" in json.loads(answer.content)["error"]["message"]


def test_without_the_client_library_the_log_has_the_command(
    ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(exporter, "find_spec", lambda _: None)
    assert ask().status_code == 500
    assert "pip install 'prometheus-client" in caplog.text


@pytest.fixture
def a_module_with_tasks(claiming: Fairness) -> Iterator[None]:
    """A module with tasks that no view imports; Celery finds it by ``autodiscover_tasks``."""
    app = parts_of(claiming).app

    def load(sender: Any, **_: Any) -> None:
        if sender is app:

            @app.task(
                name="suite.call", base=FairTask, limits=[RateLimitPolicy("api", concurrency=3)]
            )
            def call() -> None:
                """Do nothing."""

    import_modules.connect(load)
    yield
    import_modules.disconnect(load)


def test_declared_limits_are_labels_before_a_view_imports_their_tasks(
    a_module_with_tasks: None, ask: Callable[..., Any]
):
    assert samples(ask())["fairness_limit_maximum", "api"] == 3
