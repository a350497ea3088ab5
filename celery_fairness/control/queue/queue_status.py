"""The rows of a status: queues, why their tasks wait, and the shares of their tenants.

The functions ``overview`` and ``inspect_queue`` of the library count and check the limits. This
module gives their answers a public form, and computes what each tenant is entitled to.

Invariant: a status makes one call and at most :data:`PAGES_AT_MOST` more for each of its queues,
however many tenants and tasks there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.views import OwnerStatus
from celery_fairness.control.queue.views import BlockingLimit, KeySaving, QueueStatus, TenantShare
from celery_fairness.limiter.redis import Limiter
from celery_fairness.util.durations import Milliseconds, seconds

#: A status looks at the tenants of at most this many queues, those with the most waiting tasks, and
#: begins no further queue after this many tenants.
QUEUES_AT_MOST, TENANTS_AT_MOST = 20, 600
#: Queues of a status.
QUEUES_SHOWN = 100
#: Calls that look at the tenants of one queue, each at a page of them.
PAGES_AT_MOST = 3

_REASONS = {"full": "concurrency", "cools": "cool-down"}


def queues_of(answer: Mapping[str, Any], limiter: Limiter) -> tuple[QueueStatus, ...]:
    """Return the queues of an overview. The first ones have their tenants."""
    queues, looked_at = [], 0
    for index, row in enumerate(answer.get("queues", ())[:QUEUES_SHOWN]):
        queue = _queue(row, answer)
        if queue.waiting and index < QUEUES_AT_MOST and looked_at < TENANTS_AT_MOST:
            queue = _with_tenants(queue, _inspect(limiter, row[0]))
            looked_at += len(queue.tenants)
        queues.append(queue)
    return tuple(queues)


def owners_of(answer: Mapping[str, Any]) -> tuple[OwnerStatus, ...]:
    """Return the processes that run tasks, the most tasks first."""
    rows = answer.get("owners", ())
    return tuple(OwnerStatus(owner, _of_all(sampled, answer)) for owner, sampled in rows)


def all_queues(installation: Installation) -> Iterator[QueueStatus]:
    """Yield every queue of a broker that claims fairly, without its tenants."""
    if not installation.claims:
        return
    names, seen = installation.app_queues(), 0
    while True:
        answer = installation.limiter.overview(names, first=seen)
        rows = answer.get("queues", ())
        for row in rows:
            if not row[0].startswith(PARKED_QUEUES):
                yield _queue(row, answer)
        seen += len(rows)
        if not rows or seen >= answer["queue_count"]:
            return


def one_queue(installation: Installation, queue: str) -> QueueStatus | None:
    """Return a queue with its tenants, or None if nothing is known of it."""
    if not installation.claims:
        return None
    answer = installation.limiter.overview(installation.app_queues(), only=queue)
    rows = answer.get("queues", ())
    if not rows:
        return None
    return _with_tenants(_queue(rows[0], answer), _inspect(installation.limiter, queue))


def _inspect(limiter: Limiter, queue: str) -> Mapping[str, Any]:
    """Return the answer of ``inspect_queue`` with the tenants of its first pages.

    Those of several partitions are one answer with sums.
    """
    answers = [_inspect_part(each, queue) for each in limiter.parts]
    if len(answers) == 1:
        return answers[0]
    now, tenants, limits = max(each["now"] for each in answers), [], dict[str, list[Any]]()
    for answer in answers:
        # The times of each partition are those of its server.
        later_ms = now - answer["now"]
        tenants += [[*row[:8], row[8] and int(row[8]) + later_ms] for row in answer["tenants"]]
        for key, why, waiting, *saving in answer.get("limits", ()):
            known = limits.setdefault(key, [key, why, 0, *saving])
            known[1] = known[1] or why
            known[2] += waiting
    return {
        "now": now,
        "tenants": tenants,
        "limits": sorted(limits.values(), key=lambda row: (-row[2], row[0])),
        **{name: sum(each[name] for each in answers) for name in ("active", "blocked")},
    }


def _inspect_part(limiter: Limiter, queue: str) -> Mapping[str, Any]:
    first = answer = limiter.inspect_queue(queue)
    tenants = {row[0]: row for row in answer.get("tenants", ())}
    for _ in range(PAGES_AT_MOST - 1):
        if len(tenants) >= answer["active"] + answer["blocked"]:
            break
        answer = limiter.inspect_queue(queue, answer["next"], answer["taken"])
        # A tenant may have moved between two calls.
        tenants = {row[0]: row for row in answer.get("tenants", ())} | tenants
    return {**first, "tenants": list(tenants.values())}


def _with_tenants(queue: QueueStatus, answer: Mapping[str, Any]) -> QueueStatus:
    rows = answer.get("tenants", ())
    tenants = merge_tenants(tenant_share(row, answer["now"]) for row in rows)
    tenants.sort(key=lambda each: (-(each.waits_seconds or 0.0), each.key))
    limits = (
        BlockingLimit(key, _REASONS.get(why, why), waiting, *(KeySaving(*each) for each in saving))
        for key, why, waiting, *saving in answer.get("limits", ())
    )
    blocked: Counter[str] = Counter()
    for each in tenants:
        blocked[each.state] += each.waiting - each.startable
    waits = [each.waits_seconds for each in tenants if each.waits_seconds is not None]
    return replace(
        queue,
        # The tenants come from a later call, which may have counted more tasks.
        waiting=max(queue.waiting, sum(each.waiting for each in tenants)),
        startable=sum(each.startable for each in tenants),
        blocked_tasks={state: tasks for state, tasks in sorted(blocked.items()) if tasks},
        oldest_wait_seconds=max(waits, default=None),
        tenants=tuple(with_entitled(tenants)),
        limits=tuple(limits),
        is_complete=len(rows) >= answer["active"] + answer["blocked"],
    )


def _queue(row: Sequence[Any], answer: Mapping[str, Any]) -> QueueStatus:
    queue, waiting, delayed, dead, active, blocked, sampled = row
    running = _of_all(sampled, answer)
    shown = "" if queue.startswith(PARKED_QUEUES) else queue
    return QueueStatus(shown, waiting, delayed, running, dead, active, blocked)


def _of_all(sampled: int, answer: Mapping[str, Any]) -> int:
    """Return an estimate of all running tasks from those of the sample."""
    running, looked_at = int(answer["running"]), int(answer["sampled"])
    return round(sampled * running / max(1, looked_at))


def tenant_share(row: Sequence[Any], now_ms: int) -> TenantShare:
    """Return a tenant from its row in an answer of the library."""
    key, tier, weight, limit, held, waiting, startable, state, since = row[:9]
    waits = seconds(Milliseconds(max(0, now_ms - int(since)))) if since else None
    at_once = None if limit < 0 else limit
    return TenantShare(key, tier, weight, at_once, held, 0.0, waiting, startable, state, waits)


def merge_tenants(shares: Iterable[TenantShare]) -> list[TenantShare]:
    """Return shares with that of tasks without a tenant once. Each partition has such tasks."""
    found: dict[str, TenantShare] = {}
    for each in shares:
        if (known := found.get(each.key)) is not None:
            each = replace(
                each,
                held=known.held + each.held,
                waiting=known.waiting + each.waiting,
                startable=known.startable + each.startable,
                waits_seconds=max(known.waits_seconds or 0.0, each.waits_seconds or 0.0),
            )
        found[each.key] = each
    return list(found.values())


def with_entitled(tenants: Sequence[TenantShare]) -> list[TenantShare]:
    """Return tenants, each with its share of the slots that all of them hold.

    Slots are shared by weight. If a tenant's limit or its tasks do not allow it to use its share,
    the others share the rest.
    """
    entitled: dict[str, float] = dict.fromkeys((each.key for each in tenants), 0.0)
    left, rest = float(sum(each.held for each in tenants)), list(tenants)
    while rest:
        unit = left / sum(each.weight for each in rest)
        served = [each for each in rest if _usable(each) <= unit * each.weight]
        for each in served or rest:
            entitled[each.key] = _usable(each) if served else unit * each.weight
            left -= entitled[each.key]
        rest = [each for each in rest if each not in served] if served else []
    return [replace(each, entitled=entitled[each.key]) for each in tenants]


def _usable(tenant: TenantShare) -> float:
    """Return how many slots a tenant can use."""
    startable = tenant.waiting if tenant.state in ("ready", "tier") else tenant.startable
    slots = tenant.held + startable
    return float(slots if tenant.limit is None else min(slots, max(tenant.limit, tenant.held)))


def fairness_index(tenants: Iterable[TenantShare]) -> float | None:
    """Return Jain's index of held against entitled slots; None if no two tenants compete."""
    shares = [each.held / each.entitled for each in tenants if each.entitled > 0]
    if len(shares) < 2 or not any(shares):
        return None
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
