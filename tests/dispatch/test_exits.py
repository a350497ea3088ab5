"""A claimed task's slot is taken while its body runs and free at once after, on every exit.

The rows are those of the gate path; what the tasks end as is what stock Celery makes of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from tests.dispatch.conftest import assert_nothing_left
from tests.integration.conftest import Shop
from tests.integration.test_exits import POOLS_AND_LATE, leave_all


@pytest.mark.parametrize(("pool", "late"), POOLS_AND_LATE)
def test_the_slot_is_free_after_every_exit(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str, late: bool
) -> None:
    shop = make_fair_shop(conf={"task_acks_late": late})
    shop.worker(pool=pool, concurrency=2 if pool != "solo" else 1)
    leave_all(shop, pool, late=late)
    assert_nothing_left(memory)
