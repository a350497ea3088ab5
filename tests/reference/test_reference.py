"""Random operations on the library: the reference accepts every answer.

Operations are drawn from a seed, few keys and many of them, so that they meet. Short sequences on
many keys miss what needs a history.

`REFERENCE_OPERATIONS=100000` looks longer than the suite does; `REFERENCE_SEED` begins elsewhere.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

import pytest
from redis import Redis

from tests.reference.gate_walk import GateWalk, gate_operations, gate_scene
from tests.reference.operations import Operation, Scene
from tests.reference.scenes import LENGTH, lending_scene, strict_scene
from tests.reference.walk import Walk
from tests.support.services import in_ci
from tests.support.tables import assert_sums_agree, findings

OPERATIONS = int(os.environ.get("REFERENCE_OPERATIONS", "6000" if in_ci() else "1500"))
SEED = int(os.environ.get("REFERENCE_SEED", "0"))
#: Runs in which a failing sequence is made shorter.
SHORTER_AT_MOST = int(os.environ.get("REFERENCE_SHORTER", "400"))

#: Each sequence of so many ends with everything done.
DRAINED = 4

_numbers = itertools.count()


def objection_to(
    client: Redis,
    scene: Scene,
    operations: list[Operation],
    kind: type[Walk] = Walk,
) -> str | None:
    """Run a sequence. Return what is objected to and where, or None."""
    walk = kind(client, f"{{r{next(_numbers)}}}:", scene)
    done = 0
    try:
        for operation in operations:
            walk.run(operation)
            done += 1
        assert findings(client, walk.prefix, walk.rules(), walk.now) == []
        assert_sums_agree(client, walk.prefix)
        if scene.seed % DRAINED == 0:
            walk.drain()
        # A lost entry needs a deleted key, and a walk deletes none.
        assert client.hget(f"{walk.prefix}counters", "lost_entries") is None
    except Exception as error:  # noqa: BLE001 - an error of the library counts too
        return f"after {done} operations: {type(error).__name__}: {error}"
    finally:
        walk.forget()
    return None


def made_shorter(
    client: Redis, scene: Scene, operations: list[Operation], kind: type[Walk]
) -> list[Operation]:
    """Leave out operations as long as what is left fails too."""
    tries = 0
    size = len(operations) // 2
    while size and tries < SHORTER_AT_MOST:
        start = 0
        while start < len(operations) and tries < SHORTER_AT_MOST:
            fewer = operations[:start] + operations[start + size :]
            tries += 1
            if objection_to(client, scene, fewer, kind=kind):
                operations = fewer
            else:
                start += size
        size //= 2
    return operations


def check(url: str, kind: type[Walk], sequences: Iterable[tuple[Scene, list[Operation]]]) -> None:
    """Fail with a short sequence if the reference objects to one of these."""
    with Redis.from_url(url, protocol=2, decode_responses=True) as client:
        for place, operations in sequences:
            first = objection_to(client, place, operations, kind=kind)
            if not first:
                continue
            short = made_shorter(client, place, operations, kind)
            lines = "\n".join(map(repr, short))
            objection = objection_to(client, place, short, kind=kind)
            # The short sequence may fail for another reason than the whole one.
            pytest.fail(f"{place}\n{lines}\n{objection}\nthe whole: {first}", pytrace=False)


@pytest.mark.redis
@pytest.mark.timeout(3600)
def test_the_reference_accepts_every_answer_to_claims(redis_url):
    scenes = map(strict_scene, range(SEED, SEED + OPERATIONS // LENGTH))
    check(redis_url, Walk, ((place, place.operations(LENGTH)) for place in scenes))


@pytest.mark.redis
@pytest.mark.timeout(3600)
def test_the_reference_accepts_every_answer_to_claims_that_lend(redis_url):
    scenes = map(lending_scene, range(SEED, SEED + OPERATIONS // LENGTH))
    check(redis_url, Walk, ((place, place.operations(LENGTH)) for place in scenes))


@pytest.mark.redis
@pytest.mark.timeout(3600)
def test_the_reference_accepts_every_answer_to_gates(redis_url):
    scenes = map(gate_scene, range(SEED, SEED + OPERATIONS // LENGTH))
    check(redis_url, GateWalk, ((place, gate_operations(place, LENGTH)) for place in scenes))
