"""The served OpenAPI document against the API: schemathesis, strangers, and malformed bodies."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from demo_site.wsgi import application
from django.db import connections
from django.test import Client
from django_celery_fairness.api.urls import api as served
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema

from tests.django.suite.api_client import MEDIA_TYPE, ROOT, Answer
from tests.support.services import only_in_ci
from tests.support.waiting import at_most

pytestmark = pytest.mark.django_db(transaction=True)

PROJECT = Path(__file__).resolve().parents[3] / "django_app"
#: An operation of the document: its method in capital letters, and its path.
Operation = tuple[str, str]


def operations() -> list[Operation]:
    """Every operation of the document, with a name in place of each parameter of a path."""
    paths = served.get_openapi_schema(path_prefix="")["paths"]
    return [
        (method.upper(), re.sub(r"\{\w+\}", "free", path).lstrip("/"))
        for path, methods in paths.items()
        for method in methods
    ]


def test_the_document_is_served_and_has_every_route(api):
    answer = api("GET", "openapi.json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    document = json.loads(answer.content)
    assert document["openapi"].startswith("3.")
    found = {
        (method.upper(), path.removeprefix(ROOT))
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert found == {
        ("GET", "rate-limits"),
        ("GET", "rate-limits/{key}"),
        ("PUT", "rate-limits/{key}"),
        ("DELETE", "rate-limits/{key}/override"),
        ("GET", "admin/queues/{name}/rate-limit"),
        ("PUT", "admin/queues/{name}/rate-limit"),
        ("DELETE", "admin/queues/{name}/rate-limit"),
        ("GET", "tenants"),
        ("GET", "tenants/{tenant}"),
        ("PUT", "tenants/{tenant}"),
        ("DELETE", "tenants/{tenant}"),
        ("GET", "tiers"),
        ("GET", "tiers/{name}"),
        ("PUT", "tiers/{name}"),
        ("DELETE", "tiers/{name}"),
        ("GET", "tasks"),
        ("DELETE", "tasks"),
        ("GET", "tasks/{task_id}"),
        ("DELETE", "tasks/{task_id}"),
        ("GET", "events"),
        ("GET", "stats"),
        ("GET", "stats/minutes"),
        ("GET", "stats/rejections"),
        ("GET", "manifest"),
        ("GET", "health/live"),
        ("GET", "health/ready"),
    }
    inspection = document["components"]["schemas"]["Inspection"]
    assert inspection["required"] == ["key", "concurrency", "waiting_count"]
    available = document["components"]["schemas"]["Concurrency"]["properties"]["available"]
    assert available["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    bodies = document["paths"][f"{ROOT}tiers/{{name}}"]["put"]["requestBody"]["content"]
    assert set(bodies) == {MEDIA_TYPE, "application/json"}


@pytest.fixture
def served_app() -> Iterator[Callable[..., list[bytes]]]:
    """The site for the threads of schemathesis, whose connections end with the test."""
    opened = {}

    def serve(environ: Any, start_response: Any) -> list[bytes]:
        connection = connections["default"]
        if id(connection) not in opened:
            opened[id(connection)] = connection
            connection.inc_thread_sharing()
        return list(application(environ, start_response))

    yield serve
    for connection in opened.values():
        connection.close()


@only_in_ci
# Hypothesis writes some of its values into messages, and warns that they are long.
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_schemathesis_finds_nothing(api, served_app, wait_in):
    headers = {"Authorization": f"Bearer {api.token}"}
    options = {
        "generation": {"max-examples": 2, "database": "none", "deterministic": True},
        "seed": 1,
        "headers": headers,
        "continue-on-failure": True,
        # On WSGI this check calls werkzeug with an argument that it does not have. Requests without
        # a name are tested below.
        "checks": {"ignored_auth": {"enabled": False}},
    }
    document = with_example(json.loads(api("GET", "openapi.json").content), wait_in("q", "acme"))
    schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(options))
    schema.app, schema.location = served_app, f"{ROOT}openapi.json"
    tested, problems, statuses = set(), [], defaultdict(set)
    for event in from_schema(schema).execute():
        if info := getattr(event, "info", None):
            problems.append(str(info))
        recorder = getattr(event, "recorder", None)
        for checks in recorder.checks.values() if recorder else ():
            tested.add(recorder.label)
            failed = (check.failure_info.failure for check in checks if check.failure_info)
            problems += (f"{recorder.label}: {each.title}: {each.message}" for each in failed)
        for each in recorder.interactions.values() if recorder else ():
            statuses[recorder.label].add(each.response.status_code)
    assert problems == []
    assert len(tested) >= len(operations())
    # The first request about the task finds it, and a later one cancels it.
    for method in ("GET", "DELETE"):
        assert {200, 404} <= statuses[f"{method} {ROOT}tasks/{{task_id}}"]


def with_example(document: dict[str, Any], task_id: str) -> dict[str, Any]:
    """Return the document with a task that exists as the example of every ``task_id``."""
    for operation in (each for path in document["paths"].values() for each in path.values()):
        for parameter in operation.get("parameters", ()):
            if parameter["name"] == "task_id":
                parameter["example"] = task_id
    return document


@pytest.mark.parametrize("operation", operations(), ids=" ".join)
@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer nobody"}], ids=["none", "wrong"])
def test_a_request_without_a_name_is_401(claiming, operation, header):
    method, path = operation
    sent = Client().generic(method, ROOT + path, b"{}", content_type=MEDIA_TYPE, headers=header)
    answer = Answer(sent)
    answer.rejected(401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path", ["", "openapi.json", "nothing", "health", "tiers/", "../tiers", "health/live?x=1"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "PUT"])
def test_what_the_document_does_not_have_asks_for_a_name_too(claiming, path, method):
    sent = Client().generic(method, ROOT + path)
    assert sent.status_code == 401


def test_unknown_paths_and_methods_have_the_form_of_an_error(api):
    for path in ("", "nothing", "tiers/free/more", "health"):
        api("GET", path).rejected(404, "not_found")
    for method in ("POST", "PATCH", "TRACE"):
        answer = api(method, "tiers/free")
        assert "expected one of" in answer.rejected(405, "method_not_allowed")
        assert answer.headers["Allow"] == "DELETE, GET, PUT"
    api("POST", "openapi.json").rejected(405, "method_not_allowed")


def malformed(seed: int) -> Iterator[Any]:
    """Bodies that no route accepts, as bytes or as values of JSON."""
    chance = random.Random(seed)
    texts = ["", "x", "0", "P1Y", "\x00", "\ud800", "9" * 400, "PT1M", "2026-11-26", "ä", "null"]
    numbers = [0, -1, 1.5, 1e308, 10**30, 2**63, True, False, None]
    fields = ["concurrency", "rate", "throttle", "expires_at", "tier", "weight", "note", "\ud800"]
    fields += ["local_limit", "on_limit", "queue_class", "max_waiting", "description", "reason"]
    broken = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"x"', b"NaN", b'{"concurrency": NaN}']
    broken += [b"[" * 100_000, b'{"a":' * 5_000, b"1" * 5_000, b"{}{}", b"{'a': 1}", b"\x00"]

    def value(depth: int) -> Any:
        kind = chance.randrange(4 if depth else 2)
        if kind == 0:
            return chance.choice(texts)
        if kind == 1:
            return chance.choice(numbers)
        if kind == 2:
            return [value(depth - 1) for _ in range(chance.randrange(3))]
        return {chance.choice([*fields, "limit", "period"]): value(depth - 1) for _ in range(2)}

    while True:
        if chance.random() < 0.2:
            yield chance.choice(broken)
        else:
            # No body has the last field, so each of these is malformed.
            yield {chance.choice(fields): value(2) for _ in range(3)} | {"nothing": value(1)}


def test_a_thousand_malformed_bodies_are_4xx_in_our_form(api):
    puts = [path for method, path in operations() if method == "PUT"]
    assert len(puts) == 4
    bodies = malformed(seed=7)
    statuses = set()
    for number in range(1_000):
        body, path = next(bodies), puts[number % len(puts)]
        answer = api("PUT", path, body)
        assert answer.error["code"] == "invalid_request", (path, body)
        statuses.add(answer.status)
    assert statuses == {400}


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "a/b/c"])
def test_other_media_types_are_415(api, kind):
    put = api("PUT", "rate-limits/maps", {"concurrency": 1}, content_type=kind)
    assert MEDIA_TYPE in put.rejected(415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", [MEDIA_TYPE, "application/json", "application/json; charset=utf-8"]
)
def test_both_media_types_are_read_and_one_is_written(api, kind):
    put = api("PUT", "rate-limits/maps", {"concurrency": 1}, content_type=kind)
    assert put.status == 200
    assert put.json["concurrency"]["limit"] == 1


def test_a_body_that_is_too_large_is_413(api, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000
    api("PUT", "rate-limits/maps", b" " * 2_000).rejected(413, "too_large")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_does_not_have_are_no_json(api, number):
    body = b'{"concurrency": %s}' % number
    assert "in JSON" in api("PUT", "rate-limits/maps", body).rejected(400, "invalid_request")


def test_a_body_with_several_mistakes_names_each(api):
    body = {"concurrency": "3", "rate": {"limit": 0, "period": "PT1M"}, "colour": "red"}
    answer = api("PUT", "rate-limits/maps", body)
    answer.rejected(400, "invalid_request")
    places = {each["where"] for each in answer.error["details"]["problems"]}
    assert places == {"body.concurrency", "body.rate.limit", "body.colour"}
    assert json.loads(json.dumps(answer.json)) == answer.json


def test_the_answer_to_a_long_malformed_body_is_short(api):
    body = {f"field{number}": "x" * 1_000 for number in range(500)}
    answer = api("PUT", "rate-limits/maps", {**body, "y" * 10_000: 1})
    answer.rejected(400, "invalid_request")
    assert len(answer.content) < 10_000


def test_d16_an_extension_that_is_not_served_is_422(api):
    needs = {"OJS-Requires-Extension": "rate-limiting, cron"}
    answer = api("GET", "manifest", headers=needs)
    assert "'cron'" in answer.rejected(422, "EXTENSION_NOT_SUPPORTED")
    served = {"OJS-Requires-Extension": "urn:ojs:ext:rate-limiting"}
    assert api("GET", "manifest", headers=served).status == 200


WITHOUT_NINJA = """
import pkgutil, sys
sys.modules["ninja"] = None
import django
django.setup()
import django_celery_fairness
for found in pkgutil.walk_packages(django_celery_fairness.__path__, "django_celery_fairness."):
    if not found.name.startswith("django_celery_fairness.api."):
        __import__(found.name)
        print(found.name)
"""


def test_the_rest_of_the_app_needs_no_ninja():
    command = [sys.executable, "-c", WITHOUT_NINJA]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=at_most(60)
    )
    assert done.returncode == 0, done.stderr
    assert "django_celery_fairness.admin" in done.stdout
    assert "django_celery_fairness.tokens" in done.stdout
