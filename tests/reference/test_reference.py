"""Random operations on the library: the reference accepts every answer.

Operations are drawn from a seed, few keys and many of them, so that they meet. Short sequences on
many keys miss what needs a history.

`MODEL_OPERATIONS=100000` looks longer than the suite does; `MODEL_SEED` begins elsewhere.
"""

from __future__ import annotations

import itertools
import os

import pytest
from redis import Redis

from celery_fairness.store.library import Library
from tests.model.operations import Operation, Scene
from tests.reference.scenes import LENGTH, strict_scene
from tests.reference.walk import Walk

OPERATIONS = int(os.environ.get("MODEL_OPERATIONS", "4500"))
SEED = int(os.environ.get("MODEL_SEED", "0"))
#: Runs in which a failing sequence is made shorter.
SHORTER_AT_MOST = int(os.environ.get("MODEL_SHORTER", "400"))

_numbers = itertools.count()


def objection_to(
    client: Redis, scene: Scene, operations: list[Operation], made: Library | None = None
) -> str | None:
    """Run a sequence. Return what is objected to and where, or None."""
    walk = Walk(client, f"{{r{next(_numbers)}}}:", scene, made)
    done = 0
    try:
        for operation in operations:
            walk.run(operation)
            done += 1
    except Exception as error:  # noqa: BLE001 - an error of the library counts too
        return f"after {done} operations: {type(error).__name__}: {error}"
    finally:
        walk.forget()
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
            if objection_to(client, scene, fewer):
                operations = fewer
            else:
                start += size
        size //= 2
    return operations


@pytest.mark.redis
@pytest.mark.timeout(3600)
def test_the_reference_accepts_every_answer(redis_url):
    with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        for seed in range(SEED, SEED + OPERATIONS // LENGTH):
            place = strict_scene(seed)
            operations = place.operations(LENGTH)
            if not objection_to(client, place, operations):
                continue
            short = made_shorter(client, place, operations)
            lines = "\n".join(map(repr, short))
            pytest.fail(
                f"seed {seed}, {place}\n{lines}\n{objection_to(client, place, short)}",
                pytrace=False,
            )
