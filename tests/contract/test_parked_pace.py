"""How much of a rate or a throttle parked tasks use: nearly all, and never more."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from celery_fairness.decision import Admitted, Lease, Parking, SlotRequest
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.scheduling.limits import Limit
from tests.contract.conftest import FrozenClock
from tests.contract.test_parked import again, ask

SECONDS = 5

_serials = itertools.count(1)


@pytest.mark.parametrize(
    ("limit", "most", "period_ms", "broker_ms"),
    [
        (Limit("api", throttle=(20, 1_000)), 20, 1_000, 1),
        (Limit("api", throttle=(20, 1_000)), 20, 1_000, 10),
        (Limit("api", rates=((40, 1_000),)), 40, 1_000, 10),
        (Limit("api", rates=((5, 100),)), 5, 100, 4),
        (Limit("api", rates=((1, 100),)), 1, 100, 4),
    ],
)
def test_parked_tasks_use_a_rate_and_a_throttle(
    limiter: Limiter, clock: FrozenClock, limit: Limit, most: int, period_ms: int, broker_ms: int
) -> None:
    """``broker_ms`` lie between a promotion and a gate.

    A promoter asks when it was told to, and when it parks a task that came too soon.
    """
    allowed = most * SECONDS * 1_000 // period_ms
    requests = {name: ask(name, limit) for name in map(str, range(allowed + most))}
    starts: list[int] = []

    def come(name: str, request: SlotRequest) -> None:
        lease = Lease(f"{name}.{next(_serials)}", "api")
        request = replace(request, lease=lease, next_serial=f"n{lease.id}")
        if isinstance(limiter.acquire(request), Admitted):
            starts.append(clock.now_ms)
            limiter.release([lease])
        else:
            assert limiter.park(request, f"message of {name}") is Parking.PARKED

    began = clock.now_ms
    for name, request in requests.items():
        come(name, request)
    coming: list[tuple[int, str, SlotRequest]] = []
    look_at = began
    while clock.now_ms < began + SECONDS * 1_000:
        clock.advance(0.001)
        while coming and coming[0][0] <= clock.now_ms:
            _, name, request = coming.pop(0)
            before = len(starts)
            come(name, request)
            look_at = look_at if len(starts) > before else clock.now_ms
        if look_at > clock.now_ms:
            continue
        given = limiter.promote(16, f"p{next(_serials)}x")
        for task in given.tasks:
            name = task.copy.message
            limiter.unpark([name])
            coming.append((clock.now_ms + broker_ms, name, again(requests[name], task)))
        assert given.sleep_seconds is not None
        look_at = clock.now_ms + max(1, round(given.sleep_seconds * 1_000))
    assert len(starts) >= 0.95 * allowed
    for first, last in zip(starts, starts[most:], strict=False):
        # Throttled starts may make up for a tenth of their interval.
        assert last - first > period_ms - (period_ms / most / 10 + 1 if limit.throttle else 0)
