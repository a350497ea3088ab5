"""How much of a rate or a throttle parked tasks use: nearly all, and never more."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Lease, Parking, SlotRequest
from celery_fairness.worker.gate.gate import short_wait_seconds
from tests.contract.conftest import FrozenClock
from tests.contract.test_parked import again, ask
from tests.support.services import only_in_ci

_serials = itertools.count(1)


@pytest.mark.parametrize(
    ("limit", "most", "period_ms", "broker_ms", "seconds"),
    [
        (Limit("api", throttle=((20, 1_000),)), 20, 1_000, 1, 5),
        (Limit("api", throttle=((20, 1_000),)), 20, 1_000, 10, 5),
        # The claim of 20 a second, with five times the calls.
        pytest.param(Limit("api", throttle=((100, 1_000),)), 100, 1_000, 8, 2, marks=only_in_ci),
        pytest.param(Limit("api", throttle=((100, 1_000),)), 100, 1_000, 2, 2, marks=only_in_ci),
        (Limit("api", throttle=((2, 1_000),)), 2, 1_000, 8, 20),
        (Limit("api", rate=((40, 1_000),)), 40, 1_000, 10, 5),
        (Limit("api", rate=((5, 100),)), 5, 100, 4, 5),
        (Limit("api", rate=((1, 100),)), 1, 100, 4, 5),
    ],
)
def test_parked_tasks_use_a_rate_and_a_throttle(
    limiter: Limiter,
    clock: FrozenClock,
    limit: Limit,
    most: int,
    period_ms: int,
    broker_ms: int,
    seconds: int,
) -> None:
    """``broker_ms`` lie between a promotion and a gate.

    A promoter asks when it was told to, and when it parks a task that came too soon.
    """
    allowed = most * seconds * 1_000 // period_ms
    requests = {name: ask(name, limit) for name in map(str, range(allowed + most))}
    starts: list[int] = []

    def come(name: str, request: SlotRequest) -> None:
        lease = Lease(f"{name}.{next(_serials)}", "api")
        request = replace(request, lease=lease, next_serial=f"n{lease.id}")
        answer = limiter.acquire(request)
        if isinstance(answer, Admitted):
            starts.append(clock.now_ms)
            limiter.release([lease])
        elif soon := short_wait_seconds(answer):
            # As a gate: it waits there, and asks again.
            coming.append((clock.now_ms + round(soon * 1_000), name, request))
            coming.sort(key=lambda each: each[0])
        else:
            assert limiter.park(request, f"message of {name}") is Parking.PARKED

    began = clock.now_ms
    coming: list[tuple[int, str, SlotRequest]] = []
    for name, request in requests.items():
        come(name, request)
    look_at = began
    while clock.now_ms < began + seconds * 1_000:
        clock.advance(0.001)
        while coming and coming[0][0] <= clock.now_ms:
            _, name, request = coming.pop(0)
            before = len(starts)
            come(name, request)
            look_at = look_at if len(starts) > before else clock.now_ms
        if look_at > clock.now_ms:
            continue
        given = limiter.promote(16)
        for task in given.tasks:
            name = task.copy.message
            limiter.end_promotion(task, "sent")
            coming.append((clock.now_ms + broker_ms, name, again(requests[name], task)))
            coming.sort(key=lambda each: each[0])
        look_at = clock.now_ms + max(1, round(given.sleep_seconds * 1_000))
    assert len(starts) >= 0.95 * allowed
    for first, last in zip(starts, starts[most:], strict=False):
        # Throttled starts may make up for a tenth of their interval.
        assert last - first > period_ms - (period_ms / most / 10 + 1 if limit["throttle"] else 0)
