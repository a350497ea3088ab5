"""Messages that Celery cannot read: each is a dead letter at its first delivery.

Invariant: no such message ends a worker or takes a place of its pool, and the other tasks of its
claim run once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from tests.dispatch.conftest import PREFIX, assert_nothing_left, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

pytestmark = pytest.mark.redis

KINDS = "tests.dispatch.kinds"
NOT_READ = "its message cannot be read: "

Edit = Callable[[dict[str, Any]], Any]


def body(text: str, **headers: Any) -> Edit:
    coded = base64.b64encode(text.encode()).decode()

    def edit(message: dict[str, Any]) -> None:
        message["body"] = coded
        if headers:
            message["headers"] = {}

    return edit


def without(*path: str) -> Edit:
    def edit(message: dict[str, Any]) -> None:
        *within, last = path
        for name in within:
            message = message[name]
        del message[last]

    return edit


#: Each shape, as headers or as an edit of a message, and what the log line says of it.
SHAPES: dict[str, tuple[dict[str, Any] | Edit, str]] = {
    "id list": ({"id": [1]}, "id: expected text, got: list"),
    "no id": (without("headers", "id"), "KeyError in celery.worker.request"),
    "task list": ({"task": ["kinds.plain"]}, "TypeError in celery.worker.consumer"),
    "task number": ({"task": 5}, "this worker does not have its task"),
    "shadow": ({"shadow": ["x"]}, "shadow: expected text, got: list"),
    "eta": ({"eta": {}}, "eta: expected a time as text, got: dict"),
    "eta text": ({"eta": "a secret"}, "InvalidTaskError in celery.worker.request"),
    "expires": ({"expires": [1]}, "expires: expected a time as text, got: list"),
    "timelimit": ({"timelimit": "a secret"}, "timelimit: expected two numbers"),
    "timelimit texts": ({"timelimit": ["a secret", 1]}, "timelimit: expected two numbers"),
    "timelimit nan": ({"timelimit": [float("nan"), 1]}, "timelimit: expected two numbers"),
    "timelimit long": ({"timelimit": [10**400, 1]}, "timelimit: expected two numbers"),
    "stamps": ({"stamps": 5}, "stamps: expected an object, got: int"),
    "stamped": ({"stamped_headers": 5}, "stamped_headers: expected a list of names"),
    "stamped lists": ({"stamped_headers": [[1]]}, "stamped_headers: expected a list of"),
    "no headers": (lambda message: message.update(headers=None), "it names no task"),
    "no body": (without("body"), "TypeError"),
    "no base64": (lambda message: message.update(body="a secret%"), "Error"),
    "no type": (without("content-type"), "ValueError in celery.worker.request"),
    "type list": (lambda message: message.update({"content-type": [1]}), "TypeError in kombu"),
    "null": (body("null"), "TypeError in celery.worker.strategy"),
    "number": (body("5"), "TypeError in celery.worker.strategy"),
    "two parts": (body("[[], {}]"), "ValueError in celery.worker.request"),
    "no JSON": (body("a secret"), "DecodeError in"),
    "deep": (body("[" * 100_000), "DecodeError in"),
    "protocol 1, id": (
        body('{"task": "kinds.plain", "id": [1], "args": [], "kwargs": {}}', protocol=1),
        "id: expected text, got: list",
    ),
    "protocol 1, unknown": (
        body('{"task": "a secret", "id": [1], "args": [], "kwargs": {}}', protocol=1),
        "this worker does not have its task",
    ),
    "protocol 1, arguments": (
        body('{"task": "kinds.plain", "id": "1", "kwargs": []}', protocol=1),
        "InvalidTaskError in celery.worker.strategy",
    ),
}


@pytest.fixture
def template(redis_url: str, memory: Redis) -> Iterator[Callable[[], dict[str, Any]]]:
    """A factory of messages as a stock producer leaves them in a plain list."""
    with Celery("stock", broker=redis_url, set_as_current=False) as app:

        def make() -> dict[str, Any]:
            app.send_task("kinds.plain", queue="template")
            return json.loads(memory.rpop("template"))  # type: ignore[arg-type]

        yield make


def put(shop: Shop, message: dict[str, Any]) -> None:
    with shop.app.connection_for_write() as connection:
        connection.default_channel._put("celery", message)


def assert_dead_letters(memory: Redis, count: int) -> None:
    """Wait until all of them are, each with its result or the line that says why it has none."""

    def are_dead() -> None:
        assert memory.zcard(f"{PREFIX}dead:celery") == count
        assert not memory.exists(f"{PREFIX}running", f"{PREFIX}outcomes")

    eventually(are_dead, RESULT_SECONDS)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_messages_that_celery_cannot_read_end_no_worker(
    fair_shop: Shop, memory: Redis, template: Callable[[], dict[str, Any]], pool: str
) -> None:
    others, expected = [], []
    for number, (shape, text) in enumerate(SHAPES.values()):
        message = template()
        if isinstance(shape, dict):
            message["headers"].update(shape)
            fair_shop.app.send_task("kinds.plain", headers=shape)
            expected.append(text)
        else:
            shape(message)
        memory.lpush("celery", json.dumps(message))
        put(fair_shop, message)
        expected += [text, text]
        others.append(send(fair_shop, "kinds.plain", f"u{number}"))
    worker = fair_shop.worker(app=KINDS, pool=pool, concurrency=2, args=("--task-events",))
    assert [each.get(timeout=RESULT_SECONDS) for each in others] == ["done"] * len(others)
    assert_dead_letters(memory, len(expected))
    lines = [line for line in worker.log_text().splitlines() if NOT_READ in line]
    reasons = [each.partition(NOT_READ)[2] for each in lines if "the task of lease" in each]
    left = [text for text in expected if not any(text in reason for reason in reasons)]
    assert (len(reasons), left) == (len(expected), [])
    assert "secret" not in "".join(lines)
    assert send(fair_shop, "kinds.plain", "42").get(timeout=RESULT_SECONDS) == "done"
    assert set(fair_shop.runs().values()) == {1}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_task_that_cannot_be_handed_to_the_pool_takes_no_place(
    fair_shop: Shop, memory: Redis, template: Callable[[], dict[str, Any]], pool: str
) -> None:
    later = template()
    # Redis reads times as text only, so the worker waits for this one.
    at = datetime.now(UTC) + timedelta(seconds=0.5)
    typed = {"__type__": "datetime", "__value__": at.isoformat()}
    later["headers"].update(task="kinds.broken", eta=typed)
    put(fair_shop, later)
    for _ in range(3):
        send(fair_shop, "kinds.broken", None)
    others = [send(fair_shop, "kinds.plain", f"u{number}") for number in range(4)]
    worker = fair_shop.worker(app=KINDS, pool=pool, concurrency=2)
    assert [each.get(timeout=RESULT_SECONDS) for each in others] == ["done"] * 4
    assert_dead_letters(memory, 4)
    assert f"{NOT_READ}TypeError in tests.dispatch.kinds, line " in worker.log_text()
    assert send(fair_shop, "kinds.plain", "42").get(timeout=RESULT_SECONDS) == "done"
    assert fair_shop.ask(worker, "reserved") == []
    assert "secret" not in worker.log_text()


def test_an_error_around_the_body_ends_no_solo_worker(
    fair_shop: Shop, memory: Redis, template: Callable[[], dict[str, Any]]
) -> None:
    # Celery runs such a task and fails where it stores the result. Other pools catch that.
    message = template()
    message["headers"]["id"] = None
    put(fair_shop, message)
    other = send(fair_shop, "kinds.plain", "42")
    worker = fair_shop.worker(app=KINDS, pool="solo", concurrency=1)
    assert other.get(timeout=RESULT_SECONDS) == "done"
    worker.wait_for_log("failed outside its body: ValueError in celery.")
    assert_nothing_left(memory)
    assert fair_shop.runs() == {None: 1, other.id: 1}
