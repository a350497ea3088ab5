"""Tenants that an attacker chose: none reads, holds or blocks what is another's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery.result import AsyncResult
from redis import Redis

from celery_fairness.config.tenants import tier_key
from celery_fairness.errors import TenantInvalid
from tests.behaviour.conftest import PATHS
from tests.dispatch.conftest import PREFIX
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

pytestmark = pytest.mark.redis

#: Each of them is a tenant of its own.
HOSTILE = (
    "victim ",
    "victim\n",
    "victim\x00",
    "victim,api",
    "victim|1",
    "Victim",
    "{victim}",
    "}:clock",
    "{fairness}:clock",
    "tenant:victim",
    "victim:analysis",
    "vi\u0441tim",
    "victi\u0301m",
    "\u202emitciv",
    "\x1b[2J\x1b]0;victim\x07",
    "h_" + "0" * 32,
    "_none",
    "_invalid",
    "*",
    "x" * 200,
)
MEGABYTES = 10
#: None of them can be a tenant.
INVALID = ("x" * (MEGABYTES << 20), "x" * 201, "\ud800", 1.5, ["victim"], {"victim": 1}, True)
#: How long a name in Redis, an error and the log of all these tasks may be, in bytes.
KEY_BYTES, LINE_BYTES, LOG_BYTES = 300, 300, 200_000


def header(tenant: Any) -> dict[str, Any]:
    """Return the headers of a foreign producer, which checks nothing."""
    return {"headers": {"fairness": {"v": 1, "tenant": tenant}}}


@pytest.mark.parametrize("path", PATHS)
def test_a_hostile_tenant_has_keys_of_its_own_and_nothing_of_another(
    make_shop: Callable[..., Shop],
    memory: Redis,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    shop = make_shop(path, fairness={"tier_on_limit": "wait"})
    worker = shop.worker(pool="threads", concurrency=len(HOSTILE) + 4)
    gate = shop.gate_file()

    def send(tenant: Any, *, by_header: bool) -> AsyncResult[Any]:
        if by_header:
            options = header(tenant)
            return shop.app.send_task("shop.work", kwargs={"gate": str(gate)}, **options)
        return shop.send("work", user=tenant, gate=str(gate))

    victim = shop.send("work", user="victim", gate=str(gate))
    hostile = [send(tenant, by_header=n % 2 == 1) for n, tenant in enumerate(HOSTILE)]
    eventually(lambda: len(shop.ledger("start")) == 1 + len(HOSTILE), RESULT_SECONDS)
    again = [send(tenant, by_header=n % 2 == 0) for n, tenant in enumerate(HOSTILE)]
    for tenant in INVALID:
        with pytest.raises(TenantInvalid) as caught:
            send(tenant, by_header=False)
        assert len(str(caught.value)) < LINE_BYTES
    invalid = [send(tenant, by_header=True) for tenant in INVALID]
    # One of all invalid tasks runs: they share one tenant.
    eventually(lambda: len(shop.ledger("start")) == 2 + len(HOSTILE), RESULT_SECONDS)
    for tenant, first, second in zip(HOSTILE, hostile, again, strict=True):
        eventually(lambda t=tenant: shop.state(t).waiting_count == 1)
        # Not by its name: people type the names that they see, and some of these look so.
        seen = shop.state(tenant)
        assert (seen.held, seen.waiting_count) == (1, 1), tenant
        assert [each.task_id for each in seen.leases] == [first.id], tenant
        assert second.id not in shop.runs()
    seen = shop.state("victim")
    assert (seen.held, seen.waiting_count) == (1, 0)
    assert len({tier_key(tenant) for tenant in HOSTILE}) == len(HOSTILE)
    ours = {key for key in memory.scan_iter("*") if not key.startswith(("_kombu", "celery", "una"))}
    assert [key for key in ours if not key.startswith(PREFIX)] == []
    assert [key for key in ours if not key.isascii() or len(key) > KEY_BYTES] == []
    # A pause of one stops no other.
    shop.fairness.tenants.pause("{victim}")
    stopped = [t for t in ("victim", *HOSTILE) if shop.state(t).holds.paused]
    assert stopped == ["{victim}"]
    shop.fairness.tenants.resume("{victim}")
    gate.touch()
    for result in (victim, *hostile, *again, *invalid):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
    # On fairredis the producer's transport reads the header, at a gate the worker does.
    log = caplog.text + worker.log_text()
    assert log.count("attributed to the tenant _invalid") >= 1
    assert "\x1b[2J" not in log
    assert len(log.encode()) < LOG_BYTES
