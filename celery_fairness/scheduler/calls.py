"""The functions of the dispatch path: how they are asked, and how their answers are read.

Keys and arguments are apart from the connection they travel on, because a worker sends a claim on
the connection that it polls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, NamedTuple

from celery_fairness.scheduler.answers import read_tasks
from celery_fairness.scheduler.texts import (
    as_text,
    bounds_args,
    epoch_text,
    rules_args,
    triples,
)
from celery_fairness.scheduler.types import (
    Claim,
    Full,
    Outcome,
    Passing,
    Put,
    Rules,
    Said,
    Settle,
    Settled,
    Waiting,
)
from celery_fairness.util.durations import Milliseconds

PUT = "put"
#: A put of a message that lies in a plain list.
ADOPT = "adopt"
CLAIM = "claim"
SETTLE = "settle"
QUARANTINE = "quarantine"
PURGE = "purge"
SIZE = "size"
RENEW = "renew"
EXPIRE_QUEUES = "expire_queues"
#: Its answer if a queue that is used now has ended, and is not forgotten whole.
ENDS_FIRST = -2
NEXT_OUTCOME = "next_outcome"
STOP = "stop"
OVERRIDE = "override"
SET_QUEUE_LIMIT = "set_queue_limit"
CANCEL = "cancel"
REQUEUE = "requeue"
REROUTE = "reroute"
TRACE = "trace"
TRACE_PUT = "trace_put"
ANNOUNCE = "announce"
#: The gate's.
ACQUIRE = "acquire"
RENEW_GATE = "renew_gate"
RELEASE = "release"
SUPERSEDE = "supersede"
FORGET = "forget"
FREE = "free"
IDLE = "idle"
PARK = "park"
PROMOTE = "promote"
UNPARK = "unpark"
PUT_OFF = "put_off"
#: Of what is published and asked.
PUBLISH_TIERS = "publish_tiers"
PUBLISH_TENANT = "publish_tenant"
INSPECT = "inspect"


def put_args(
    waiting: Waiting,
    now_text: str = "",
    bindings: str = "",
    bound: Sequence[str] = (),
    plain: str = "",
    entry: bytes | str = "",
) -> list[Any]:
    """Return the arguments of a put.

    Args:
        waiting: The task.
        now_text: The server's time in tests, in ms.
        bindings: Key of the exchange's bindings where they were looked up before; "" elsewhere.
        bound: Those that there were, as kombu writes them.
        plain: Key of the plain list that the message is taken from; "" elsewhere.
        entry: What lies there.
    """
    words = (
        waiting.tag,
        waiting.tenant,
        waiting.service,
        waiting.tier,
        str(waiting.rank),
        f"{float(waiting.cost):.17g}",
        str(waiting.eta_ms),
        str(waiting.expires_ms),
        waiting.kind,
        waiting.limits,
        *bounds_args(waiting.bounds),
        "1" if waiting.is_new else "",
    )
    return [
        waiting.queue,
        " ".join(words),
        waiting.message,
        now_text,
        bindings,
        plain,
        entry,
        *bound,
    ]


def quarantine_args(queue: str, plain: str, entry: bytes) -> list[Any]:
    """Return the arguments of moving aside what nobody can read in a plain list."""
    return [queue, plain, entry]


def read_put(answer: Any) -> Put | Full:
    """Read the answer to a put."""
    if isinstance(answer, list):
        key, limit, waiting = answer
        return Full(as_text(key), int(limit), int(waiting))
    return Put(int(answer))


def claim_args(
    owner: str,
    number: int,
    want: int,
    queues: Sequence[str],
    rules: Rules,
    now_text: str = "",
    passing: Passing | None = None,
    epoch: int | None = None,
    ends: Sequence[Settle] = (),
) -> list[str]:
    """Return the arguments of a claim.

    Args:
        owner: The process that asks; without a space.
        number: Of this request; the same number again gives the same answer.
        want: Most tasks, at least 1.
        queues: In the order in which they are asked.
        rules: The worker's settings.
        now_text: The server's time in tests, in ms.
        passing: What this process does not take.
        epoch: In which what this process holds is known; None where it holds nothing. In another
            one nothing is leased.
        ends: What became of tasks that were claimed before.
    """
    return [
        owner,
        str(number),
        str(want),
        *rules_args(rules),
        now_text,
        json.dumps(asdict(passing)) if passing else "",
        epoch_text(epoch),
        rules.fairness_by,
        str(rules.snooze_ms),
        rules.priority_scope,
        str(len(ends)),
        *triples(ends),
        *queues,
    ]


def read_claim(answer: bytes | str) -> Claim:
    """Read the answer to a claim."""
    data = answer.encode() if isinstance(answer, str) else answer
    sleep_ms, epoch, length, rest = data.split(b" ", 3)
    passed, told = rest[: int(length)], rest[int(length) :]
    return Claim(
        tuple(read_tasks(told)),
        Milliseconds(int(sleep_ms)),
        json.loads(passed) if passed else {},
        int(epoch),
    )


def settle_args(ends: Sequence[Settle], rules: Rules, now_text: str = "") -> list[str]:
    """Return the arguments of a settle."""
    return [*rules_args(rules), now_text, *triples(ends)]


def read_settle(answer: Sequence[Any]) -> list[Settled]:
    """Read the answer to a settle: one for each end."""
    return [Settled(int(each)) for each in answer]


def renew_args(
    held: Sequence[tuple[str, str]], lease_ms: int, epoch: int | None = None, now_text: str = ""
) -> list[str]:
    """Return the arguments of a renewal.

    Args:
        held: Leases, each with its keys (``Claimed.key``).
        lease_ms: How long a lease lives without a renewal.
        epoch: In which they were known; None where the caller does not know.
        now_text: The server's time in tests, in ms.
    """
    args = [str(lease_ms), epoch_text(epoch), now_text]
    for lease, key in held:
        args += (lease, key)
    return args


def read_renew(answer: Sequence[Any]) -> tuple[int, list[int]]:
    """Read the answer to a renewal: the epoch, and the positions (from 1) of what was missing.

    It is gone, and in another epoch than the caller knew it was entered again.
    """
    epoch, *missing = answer
    return int(epoch), [int(each) for each in missing]


def announce_args(
    lease_ms: int, worker: str, lives_ms: int, epoch: int | None, now_text: str = ""
) -> list[str]:
    """Return the arguments of an announcement.

    Args:
        lease_ms: How long a lease lives without a renewal.
        worker: The worker as JSON; "" if the caller is none.
        lives_ms: How long it is listed without another announcement; 0 ends it.
        epoch: The one that the caller knew; None if it knew none.
        now_text: The server's time in tests, in ms.
    """
    return [str(lease_ms), worker, str(lives_ms), epoch_text(epoch), now_text]


def read_announce(answer: bytes | str) -> bool:
    """Return whether the memory was lost since the epoch that the caller knew."""
    return as_text(answer) == "lost"


def size_args(queue: str, now_text: str = "") -> list[str]:
    """Return the arguments of a count of what waits in a queue.

    Args:
        queue: Whose tasks.
        now_text: The server's time in tests, in ms.
    """
    return [queue, now_text]


def expire_queues_args(
    kept_ms: Mapping[str, int], declared: bool = False, now_text: str = ""
) -> list[str]:
    """Return the arguments of a look at queues that end when nobody uses them.

    Args:
        kept_ms: Queues in use now, each with how long it is kept without; 0: for ever.
        declared: They are declared now.
        now_text: The server's time in tests, in ms.
    """
    args = [now_text, "declared" if declared else ""]
    for queue, kept in kept_ms.items():
        args += (queue, str(kept))
    return args


def next_outcome_args(written: str, rules: Rules, now_text: str = "") -> list[str]:
    """Return the arguments of a call for the next outcome.

    Args:
        written: Text of the outcome whose result is written; "" for none.
        rules: The worker's settings.
        now_text: The server's time in tests, in ms.
    """
    return [
        written,
        *rules_args(rules),
        now_text,
    ]


def read_next_outcome(answer: Sequence[Any]) -> Outcome | None:
    """Read the answer to a call for the next outcome."""
    if not answer:
        return None
    text, owner, state, queue, tenant, deaths, message = map(as_text, answer)
    return Outcome(text, owner, state, queue, tenant, int(deaths), message)


def stop_args(
    how: str,
    key: str,
    wait_ms: int,
    lease_ms: int,
    enforcement: str,
    now_text: str = "",
    reason: str = "",
    by: str = "",
) -> list[str]:
    """Return the arguments of a change of a key's stops.

    Args:
        how: ``pause``, ``resume``, ``cool`` or ``clear``.
        key: Of the limits.
        wait_ms: How long it cools down or is paused; 0: a pause until it is resumed.
        lease_ms: How long a lease lives without a renewal.
        enforcement: ``on``, ``observe`` or ``off``.
        now_text: The server's time in tests, in ms.
        reason: Of a cool-down, for its event.
        by: The person who pauses or resumes it.
    """
    return [how, key, str(wait_ms), str(lease_ms), enforcement, now_text, reason, by]


class Stopped(NamedTuple):
    """What stops a key after such a change.

    Attributes:
        cool_ms: How long it still cools down; 0: it does not.
        pause_ms: How long it is paused; 0: it is not; None: until it is resumed.
        now_ms: The server's time.
        since_ms: When the pause began; None: it is not paused.
        by: The person who paused it.
    """

    cool_ms: Milliseconds
    pause_ms: Milliseconds | None
    now_ms: int
    since_ms: int | None
    by: str


def read_stop(answer: Sequence[Any]) -> Stopped:
    """Read the answer to it."""
    cool_ms, pause_ms, now_ms = map(int, answer[:3])
    return Stopped(
        Milliseconds(cool_ms),
        Milliseconds(pause_ms) if pause_ms >= 0 else None,
        now_ms,
        *read_paused_by(as_text(answer[3])),
    )


def read_paused_by(text: str) -> tuple[int | None, str]:
    """Return when a pause began, and the person, as Redis keeps it; None and "": no pause."""
    since, _, by = text.partition(" ")
    return (int(since) if since else None), by


def override_args(
    key: str,
    numbers: str,
    lasts_ms: int,
    ends_ms: int | None,
    details: str,
    lease_ms: int,
    enforcement: str,
    now_text: str = "",
) -> list[str]:
    """Return the arguments of an override.

    Args:
        key: Of the limits, or of a tenant.
        numbers: Those that it says (``scheduler.overrides.Override.text``); "" clears them.
        lasts_ms: For how long from now; 0: see ``ends_ms``.
        ends_ms: Server time at which it ends; None: when it is cleared.
        details: What functions do not read.
        lease_ms: How long a lease lives without a renewal.
        enforcement: ``on``, ``observe`` or ``off``.
        now_text: The server's time in tests, in ms.
    """
    ends_text = "" if ends_ms is None else str(ends_ms)
    lasts_text, lease_text = str(lasts_ms), str(lease_ms)
    return [key, numbers, lasts_text, ends_text, details, lease_text, enforcement, now_text]


def read_override(answer: Any) -> Said:
    """Read the answer to it."""
    return Said(int(answer))


def queue_args(
    how: str,
    queue: str,
    key: str,
    parts: bool,
    numbers: str,
    lease_ms: int,
    enforcement: str,
    now_text: str = "",
) -> list[str]:
    """Return the arguments of what is said of a queue's limit.

    Args:
        how: ``declare``, ``set``, ``clear`` or ``know`` (``config.queue_limits``).
        queue: Whose.
        key: Of the queue as a whole.
        parts: What is declared is of each partition.
        numbers: ``QueueNumbers.text``; "" where there are none.
        lease_ms: How long a lease lives without a renewal.
        enforcement: ``on``, ``observe`` or ``off``.
        now_text: The server's time in tests, in ms.
    """
    shape = "parts" if parts else "whole"
    return [how, queue, key, shape, numbers, str(lease_ms), enforcement, now_text]


def cancel_args(queue: str, records: Sequence[str], lease_ms: int, now_text: str = "") -> list[str]:
    """Return the arguments of cancelling tasks.

    Args:
        queue: Where they wait.
        records: Each as it was read where it waits.
        lease_ms: How long a lease lives without a renewal.
        now_text: The server's time in tests, in ms.
    """
    return [queue, str(lease_ms), now_text, *records]


def read_cancel(answer: Sequence[Any]) -> list[bool]:
    """Read the answer to it: of each whether it was cancelled."""
    return [int(each) == 1 for each in answer]


def requeue_args(queue: str, record: str, outcome: str = "") -> list[str]:
    """Return the arguments of a dead letter's return.

    Args:
        queue: Of whose dead letters it is one.
        record: As it lies there.
        outcome: Its own, where its result is not written yet.
    """
    return [queue, record, outcome]


def reroute_args(queue: str, target: str, records: Sequence[tuple[str, str]]) -> list[str]:
    """Return the arguments of moving tasks to another queue.

    Args:
        queue: Where they wait.
        target: Where they go to.
        records: Each as it was read, and the key of its partition there, "" where it says none.
    """
    return [queue, target, *chain.from_iterable(records)]


def trace_args(wait_ms: int, now_text: str = "") -> list[str]:
    """Return the arguments of watching what becomes of tasks for so long."""
    return [str(wait_ms), now_text]


def read_reroute(answer: Sequence[Any]) -> list[bool]:
    """Read the answer to it: of each whether it was moved."""
    return [int(each) == 1 for each in answer]
