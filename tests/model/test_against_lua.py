"""Random operations on the model and on the scripts: every answer and the whole state are the same.

Operations are drawn from a seed, few keys and many of them, so that they meet: short sequences on
many keys miss what needs a history (an earlier prototype passed 25,000 operations in runs of 150
and failed in runs of 300).

`MODEL_OPERATIONS=100000` looks longer than the suite does; `MODEL_SEED` begins elsewhere.
"""

from __future__ import annotations

import itertools
import os

import pytest
from redis import Redis

from tests.model.both import Both
from tests.model.operations import LENGTH, Operation, Scene, scene

OPERATIONS = int(os.environ.get("MODEL_OPERATIONS", "3000"))
SEED = int(os.environ.get("MODEL_SEED", "0"))
#: Runs in which a failing sequence is made shorter.
SHORTER_AT_MOST = int(os.environ.get("MODEL_SHORTER", "400"))
#: Operations between two checks of the tables.
CHECK_EVERY = 50

_numbers = itertools.count()


def failure_of(client: Redis, scene: Scene, operations: list[Operation]) -> str | None:
    """Run a sequence; return what went wrong and where."""
    both = Both(client, f"{{m{next(_numbers)}}}:", scene)
    done = 0
    try:
        for operation in operations:
            both.run(operation)
            done += 1
            if done % CHECK_EVERY == 0:
                both.check_tables()
        both.check_tables()
        both.drain()
        both.check_tables()
    except Exception as error:  # noqa: BLE001 - a script's error counts too
        return f"after {done} operations: {type(error).__name__}: {error}"
    finally:
        both.scripts.forget()
    return None


def made_shorter(client: Redis, scene: Scene, operations: list[Operation]) -> list[Operation]:
    """Leave out operations as long as what is left fails too."""
    tries = 0
    size = len(operations) // 2
    while size and tries < SHORTER_AT_MOST:
        start = 0
        while start < len(operations) and tries < SHORTER_AT_MOST:
            fewer = operations[:start] + operations[start + size :]
            tries += 1
            if failure_of(client, scene, fewer):
                operations = fewer
            else:
                start += size
        size //= 2
    return operations


@pytest.mark.redis
@pytest.mark.timeout(3600)
def test_the_scripts_do_what_the_model_does(redis_url):
    with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        for seed in range(SEED, SEED + OPERATIONS // LENGTH):
            place = scene(seed)
            operations = place.operations()
            if not failure_of(client, place, operations):
                continue
            short = made_shorter(client, place, operations)
            lines = "\n".join(map(repr, short))
            pytest.fail(
                f"seed {seed}, {place}\n{lines}\n{failure_of(client, place, short)}", pytrace=False
            )
