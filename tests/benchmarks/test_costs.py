"""The benchmark of costs measures tasks that have what it says."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.benchmarks import costs


@pytest.mark.redis
@pytest.mark.parametrize("scene", costs.SCENES[1:], ids=lambda scene: scene.what)
def test_a_number_costs_commands_and_no_task_waits_for_it(
    redis_url: str, scene: costs.Scene
) -> None:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        base, _ = costs.of_task(client, costs.SCENES[0], 3)
        commands, us = costs.of_task(client, scene, 3)
    # A burst that nobody needs costs nothing.
    assert sum(commands) > sum(base) or "burst" in scene.what
    assert us > 0
