"""Apps on a broker in memory, a fake limiter or one in Redis, and a clock that a test moves.

Invariant: what a test wires is unwired after it, and its messages are gone.

Weakness: kombu's memory broker is one for the whole process, so two tests cannot share it at once.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery import Celery
from kombu.transport import memory

from celery_fairness import Fairness
from celery_fairness.config.settings import build_settings
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.util.durations import Milliseconds
from celery_fairness.util.throttled_log import Notices
from tests.support.answering_limiter import AnsweringLimiter
from tests.support.parts import parts_of


class FrozenClock:
    """A time in seconds that moves only when told to; `ms` reads the same time for a limiter."""

    def __init__(self) -> None:
        self.now_seconds = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_seconds

    def ms(self) -> Milliseconds:
        return Milliseconds(round(self.now_seconds * 1000))

    def advance(self, seconds: float) -> None:
        self.now_seconds += seconds


@dataclass(frozen=True)
class Published:
    """One message as it lay on the broker."""

    queue: str
    name: str
    headers: dict[str, Any]
    args: list[Any]
    kwargs: dict[str, Any]
    embedded: dict[str, Any]
    properties: dict[str, Any]

    @property
    def fairness(self) -> Any:
        return self.headers.get("fairness")


@dataclass
class Shop:
    """A Celery app wired to a limiter, a fake one unless the test gives another."""

    app: Celery
    fairness: Fairness
    limiter: Limiter
    clock: FrozenClock
    task: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        # A shared task would be registered with every other app of this process.
        self.task = functools.partial(self.app.task, shared=False)

    def published(self) -> list[Published]:
        """Take every message from the broker, in the order of the queues' names."""
        return taken_from_broker()

    def one(self) -> Published:
        messages = self.published()
        assert len(messages) == 1, messages
        return messages[0]


def taken_from_broker() -> list[Published]:
    found = []
    for name, queue in sorted(memory.Channel.queues.items()):
        while queue.qsize():
            message = queue.get()
            body, properties = message["body"], message["properties"]
            if properties.get("body_encoding") == "base64":
                body = base64.b64decode(body)
            body, headers = json.loads(body), message["headers"]
            if isinstance(body, dict):
                # The task protocol 1.
                kind, args, kwargs, embedded = body["task"], body["args"], body["kwargs"], {}
            else:
                kind, (args, kwargs, embedded) = headers["task"], body
            found.append(Published(name, kind, headers, args, kwargs, embedded, properties))
    return found


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def make_redis_limiter(redis_url: str, clock: FrozenClock) -> Iterator[Callable[..., Limiter]]:
    """A factory of limiters in an empty Redis, on the frozen clock: ``(**settings)``."""
    made: list[Limiter] = []

    def make(**settings: Any) -> Limiter:
        connection = Connection(address_from_url(redis_url))
        made.append(Limiter(connection, build_settings(settings), clock.ms))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


@pytest.fixture
def notices() -> Notices:
    return Notices(logging.getLogger("celery_fairness"))


@pytest.fixture
def make_shop(clock: FrozenClock) -> Iterator[Callable[..., Shop]]:
    """A factory: ``make_shop(fairness={...}, conf={...}, environ={...}, **options of Celery)``."""
    wired: list[Fairness] = []

    def make(
        fairness: dict[str, Any] | None = None,
        conf: dict[str, Any] | None = None,
        environ: dict[str, str] | None = None,
        main: str = "shop",
        limiter: Limiter | None = None,
        **options: Any,
    ) -> Shop:
        app = Celery(
            main,
            broker="memory://",
            backend="cache+memory://",
            **{"set_as_current": False, **options},
        )
        app.conf.update(conf or {})
        if fairness is not None:
            app.conf.fairness = fairness
        made = Fairness(app, environ or {})
        wired.append(made)
        parts = parts_of(made)
        parts.limiter = used = limiter or AnsweringLimiter()
        parts.tier_cache = TierCache(made.settings, lambda: used, parts.notices, clock)
        return Shop(app, made, used, clock)

    memory.Channel.queues.clear()
    yield make
    memory.Channel.queues.clear()
    for each in wired:
        each.close()


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    return make_shop()
