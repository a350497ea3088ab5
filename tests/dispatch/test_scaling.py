"""Tenants spread over two installations, as docs/explanation/scaling.md has it."""

from __future__ import annotations

from redis import Redis

from tests.dispatch.conftest import PREFIX, assert_nothing_left
from tests.integration.conftest import RESULT_SECONDS
from tests.support.redis_server import RedisServer


def test_a_call_goes_to_the_installation_of_its_connection(fair_shop, memory: Redis) -> None:
    task = fair_shop.app.tasks["shop.add"]
    with RedisServer() as other, other.client(decode_responses=True) as there:
        with fair_shop.app.connection_for_write(f"fair{other.url}") as connection:
            task.apply_async((1, 2), {"user": "42"}, connection=connection)
            result = task.apply_async((3, 4), {"user": "42"}, connection=connection)
        assert there.hget(f"{PREFIX}tenant_state:tenant:42", "q:celery") == "2"
        assert_nothing_left(memory)
        fair_shop.worker(env={"CELERY_BROKER_URL": f"fair{other.url}"})
        assert result.get(timeout=RESULT_SECONDS) == 7
        # Nobody works here; both installations know their own of the tenant.
        task.apply_async((5, 6), {"user": "42"})
        assert memory.hget(f"{PREFIX}tenant_state:tenant:42", "q:celery") == "1"
        assert fair_shop.fairness.tenants.purge("42").cancelled == 1
