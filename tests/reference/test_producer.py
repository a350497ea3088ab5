"""The rights that the docs list for a producer are enough for every put, in every state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from celery_fairness.scheduler import calls
from celery_fairness.store.library import load
from tests.reference.operations import Operation, Scene
from tests.reference.scenes import LENGTH, strict_scene
from tests.reference.test_reference import check
from tests.reference.walk import Walk
from tests.support.rights import rights_of

SCENES = 3


class ProducerWalk(Walk):
    """Its puts come from a user with the rights of a producer, all other calls from a worker's."""

    def __init__(self, client: Redis, prefix: str, *details: Any) -> None:
        super().__init__(client, prefix, *details)
        load(client.execute_command, self.library)
        words = [*rights_of("producer"), *rights_of("unique")]
        rights = [each.replace("{fairness}:", prefix) for each in words]
        client.execute_command("ACL", "SETUSER", "producer", "reset", "on", ">pw", *rights)
        given = client.connection_pool.connection_kwargs
        self.producer = Redis(
            host=given["host"],
            port=given["port"],
            username="producer",
            password="pw",
            protocol=2,
            decode_responses=True,
        )

    def call(self, function: str, args: Sequence[Any], owner: str = "") -> Any:
        if function != calls.PUT:
            return super().call(function, args, owner)
        self.answer = self.producer.fcall(self.library.function(function), 1, self.prefix, *args)
        pipeline = self.client.pipeline(transaction=False)
        self.observer.ask(pipeline, self.now)
        self.seen = self.observer.read(pipeline.execute())
        return self.answer

    def forget(self) -> None:
        super().forget()
        self.producer.close()
        self.client.execute_command("ACL", "DELUSER", "producer")


def operations_of(scene: Scene) -> list[Operation]:
    """Return operations in which no put replaces a task: it would need more rights."""
    return [
        tuple(f"d{each[1:]}" if str(each).startswith("r|") else each for each in operation)
        for operation in scene.operations(LENGTH)
    ]


@pytest.mark.redis
def test_a_producer_has_the_rights_for_every_put(redis_url):
    scenes = (replace(strict_scene(seed), unique=0.3) for seed in range(SCENES))
    check(redis_url, ProducerWalk, ((place, operations_of(place)) for place in scenes))
