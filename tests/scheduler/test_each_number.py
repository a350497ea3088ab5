"""Each number of a limit in the same scene: enforced, observed, off, paused and overridden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from celery_fairness.config.limit_spec import OF_QUEUE, Limit
from celery_fairness.config.rates import Rate
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler import calls
from tests.scheduler.shop import Shop

HOUR = 3_600_000
TWO, THREE = ((2, HOUR),), ((3, HOUR),)
PART = Limit("queue:q:1", of=OF_QUEUE)


class Scene(NamedTuple):
    """A number that lets some of four tasks start.

    Attributes:
        key: The key that has it.
        raised: An override by which three tasks start. Empty if an override does not lift it.
        limit: The limit of each task beside its tenant's, if it has one.
        prepare: What people and settings do before.
        fits: How many tasks start.
    """

    key: str
    raised: dict[str, Any]
    limit: Limit | None = None
    prepare: Callable[[Shop], Any] = lambda _: None
    fits: int = 2


def report(shop: Shop) -> None:
    args = calls.report_args("api", None, 2, HOUR, shop.rules.lease_ms, str(shop.now))
    shop.run(calls.REPORT, args)


def tier(**numbers: Any) -> Callable[[Shop], Any]:
    return lambda shop: shop.tiers(Tier("free", **{"concurrency": 9, **numbers}))


NUMBERS = {
    "the limit of a queue": Scene(
        *("queue:q", {"concurrency": 3}, PART),
        lambda shop: shop.limit_queue(how="declare", concurrency=2, part={"concurrency": 9}),
    ),
    "the rate of each partition": Scene(
        *("queue:q:1", {"rate": THREE}, PART),
        lambda shop: shop.limit_queue(how="declare", concurrency=9, part={"rate": TWO}),
    ),
    "the rate of a tier": Scene("tenant:a", {"rate": THREE}, None, tier(rate=Rate(2, 3600))),
    "the throttle of a tier": Scene(
        "tenant:a", {"throttle": None}, None, tier(throttle=Rate(2, 3600)), 1
    ),
    "the burst of a tier": Scene(
        "tenant:a", {"concurrency": 3}, None, tier(concurrency=1, burst=2)
    ),
    "the number of a pattern": Scene(
        *("api.x", {"concurrency": 3}, Limit("api.x", concurrency=9)),
        lambda shop: shop.override("api.*", concurrency=2),
    ),
    "slots": Scene("api", {"concurrency": 6}, Limit("api", concurrency=5, slots=2)),
    "units": Scene("api", {"rate": ((120, HOUR),)}, Limit("api", rate=((100, HOUR),), units=40)),
    "a report": Scene("api", {}, Limit("api", concurrency=9), report),
}
EACH = pytest.mark.parametrize("scene", NUMBERS.values(), ids=NUMBERS)


@pytest.fixture
def full(shop: Shop, scene: Scene) -> Shop:
    """As many tasks run as the number allows, and the others wait."""
    arrange(shop, scene)
    assert shop.claim()[0] == list(range(1, scene.fits + 1))
    assert shop.claim()[0] == []
    return shop


def arrange(shop: Shop, scene: Scene) -> None:
    scene.prepare(shop)
    shop.put("a", *filter(None, [scene.limit]), times=4, tier="free")


@EACH
@pytest.mark.parametrize("enforcement", ["observe", "off"])
def test_a_worker_that_enforces_nothing_starts_all_and_counts_them(shop, scene, enforcement):
    arrange(shop, scene)
    started = shop.claim(4, enforcement=enforcement)[0]
    # A report is a cool-down, which holds whatever is enforced.
    assert started == ([1, 2] if scene.prepare is report else [1, 2, 3, 4])
    shop.put("a", *filter(None, [scene.limit]), tier="free")
    assert shop.claim()[0] == []


@EACH
@pytest.mark.parametrize("enforcement", ["on", "observe", "off"])
def test_a_pause_holds_and_lets_the_number_hold_after_it(shop, scene, enforcement):
    arrange(shop, scene)
    shop.stop("pause", scene.key)
    assert shop.claim(enforcement=enforcement)[0] == []
    shop.stop("resume", scene.key)
    assert len(shop.claim()[0]) == scene.fits


@EACH
def test_an_override_raises_the_number_and_lifts_no_report(full, scene):
    full.override(scene.key, **(scene.raised or {"concurrency": 9}))
    started = [number for _ in range(4) for number in full.claim()[0]]
    if scene.prepare is report:
        assert started == []
    elif scene.raised == {"throttle": None}:
        assert started == [2, 3, 4]
    else:
        assert started == [3]
    full.override(scene.key)
    full.put("a", *filter(None, [scene.limit]), tier="free")
    assert full.claim()[0] == []
