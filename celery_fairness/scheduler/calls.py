"""The functions of the library: their names, the arguments of a call, and the reading of answers.

This module sends nothing, because a worker sends a claim on the connection that kombu polls.

The head of each file in ``store/lua/functions`` describes the arguments of its function. Here they
have the same names, and None stands for "". The other names mean the same in every call:

- ``rules``: the worker's settings
- ``now_text``: the server's time in ms in tests, "" for the server's clock
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_fairness.config.numbers import write_numbers
from celery_fairness.scheduler.types import (
    Bounds,
    Claim,
    Claimed,
    Existing,
    Full,
    Outcome,
    Put,
    Renewal,
    Rules,
    Settle,
    Settled,
    SkippedTasks,
    T,
    Verdict,
    Waiting,
)
from celery_fairness.util.durations import Milliseconds

_SKIPS_NOTHING = json.dumps(asdict(SkippedTasks()))

PUT = "put"
#: A put of a message from a plain list.
ADOPT = "adopt"
CLAIM = "claim"
SETTLE = "settle"
BEGIN = "begin"
USED = "used"
QUARANTINE = "quarantine"
PURGE = "purge"
SIZE = "size"
RENEW = "renew"
EPOCH = "epoch"
RING = "ring"
#: Functions of the permits of keys that tenants of several partitions have.
REQUEST_PERMITS = "request_permits"
GRANT_PERMITS = "grant_permits"
ACCEPT_PERMITS = "accept_permits"
DUE_PERMITS = "due_permits"
EXPIRE_QUEUES = "expire_queues"
#: Its answer if a queue has ended that is in use again, and is not removed completely yet.
ENDS_FIRST = -2
NEXT_OUTCOME = "next_outcome"
STOP = "stop"
OVERRIDE = "override"
REPORT = "report"
SET_QUEUE_LIMIT = "set_queue_limit"
CANCEL = "cancel"
REQUEUE = "requeue"
FIND = "find"
DEAD_LETTERS = "dead_letters"
LIST = "list"
#: Functions of the way back to the stock transport.
SCHEDULED = "scheduled"
MOVE_TO_LIST = "move_to_list"
HOLDERS = "holders"
REROUTE = "reroute"
#: Functions of a move from another installation.
MOVE_OUT = "move_out"
MOVE_IN = "move_in"
TRACE = "trace"
WAITING = "waiting"
TRACE_PUT = "trace_put"
ANNOUNCE = "announce"
#: Functions of the gate.
ACQUIRE = "acquire"
SUPERSEDE = "supersede"
PARK = "park"
#: Functions of tiers, tenants and inspect.
PUBLISH_TIERS = "publish_tiers"
PUBLISH_TENANT = "publish_tenant"
UNRESOLVED = "unresolved"
INSPECT = "inspect"
INSPECT_QUEUE = "inspect_queue"
OVERVIEW = "overview"
BACKLOG = "backlog"
TOTALS = "totals"
EXPLAIN = "explain"


def put_args(
    waiting: Waiting,
    now_text: str = "",
    bindings: str = "",
    bound: Sequence[str] = (),
    plain: str = "",
    entry: bytes | str = "",
) -> list[Any]:
    """Return the arguments of a put of ``waiting``."""
    bounds = waiting.bounds or Bounds(default_tier="")
    fields = (
        waiting.tag,
        waiting.tenant,
        waiting.service,
        waiting.tier,
        str(waiting.rank),
        f"{float(waiting.cost):.17g}",
        str(waiting.eta_ms),
        str(waiting.expires_ms),
        waiting.task_id,
        waiting.kind,
        waiting.limits,
        bounds.default_tier,
        _or_empty(bounds.of_tier),
        _or_empty(bounds.of_queue),
        "1" if waiting.is_new else "",
        waiting.unique,
    )
    return [
        waiting.queue,
        " ".join(fields),
        waiting.message,
        now_text,
        bindings,
        plain,
        entry,
        *bound,
    ]


def read_put(answer: Any) -> Put | Full | Existing:
    """Read the answer to a put."""
    if isinstance(answer, list) and len(answer) == 1:
        return Existing(as_text(answer[0]))
    if isinstance(answer, list):
        key, limit, waiting = answer
        return Full(as_text(key), int(limit), int(waiting))
    return Put(abs(int(answer)))


def rings_bell(answer: Any) -> bool:
    """Return whether the producer rings the bell of the queue after this answer to a put."""
    return not isinstance(answer, list) and int(answer) < 0


def claim_args(
    owner: str,
    number: int,
    want: int,
    queues: Sequence[str],
    rules: Rules,
    now_text: str = "",
    skipped: SkippedTasks | None = None,
    epoch: int | None = None,
    ends: Sequence[Settle] = (),
    is_first: bool = False,
    ring: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the arguments of a claim.

    Args:
        is_first: Whether the caller is certain that it has not sent this number before. Then Redis
            does not look for the answer to it.
        skipped: The tasks that this process skips.
        epoch: The epoch in which this process took its leases. None if it holds none. In another
            epoch the claim leases nothing.
        ends: The ends of tasks that were claimed before.
        ring: What the caller has read of the rings, as ``rings.lua`` reads it. None if the
            installation has one partition.
    """
    passing = json.dumps(asdict(skipped)) if skipped else ""
    if ring is not None:
        passing = f'{(passing or _SKIPS_NOTHING)[:-1]}, "ring": {json.dumps(ring)}}}'
    return [
        owner,
        str(number),
        str(want),
        *rules_args(rules),
        now_text,
        passing,
        _or_empty(epoch),
        rules.fairness_by,
        str(rules.snooze_ms),
        f"{rules.priority_scope} {_or_empty(rules.priority_aging_ms)}".rstrip(),
        _or_empty(rules.copies_ms),
        str(len(ends)),
        "first" if is_first else "",
        *_ends_args(ends),
        *queues,
    ]


def read_claim(answer: bytes | str, in_partition: bool = False) -> Claim:
    """Read the answer to a claim; ``in_partition`` is whether it was sent with a ring."""
    data = answer.encode() if isinstance(answer, str) else answer
    sleep_ms, epoch, length, rest = data.split(b" ", 3)
    passed, tasks = rest[: int(length)], rest[int(length) :]
    read = json.loads(passed) if passed else {}
    return Claim(
        tuple(_read_tasks(tasks)),
        Milliseconds(int(sleep_ms)),
        read.get("places", {}) if in_partition else read,
        int(epoch),
        read if in_partition else {},
    )


def _read_tasks(text: bytes) -> Iterator[Claimed]:
    """Yield the tasks of a claim: each follows its length."""
    at = 0
    while at < len(text):
        begins = text.index(b" ", at) + 1
        at = begins + int(text[at:begins])
        lease, attempt, deaths, *rest_of_head = text[begins:at].split(b" ", 8)
        key, rank, waited, limit, length, rest = rest_of_head
        queue_ends = int(length)
        yield Claimed(
            lease.decode(),
            rest[:queue_ends].decode(),
            int(attempt),
            key.decode(),
            int(rank),
            rest[queue_ends:].decode(),
            Milliseconds(int(waited)) if waited else None,
            limit.decode(),
            int(deaths),
        )


def settle_args(ends: Sequence[Settle], rules: Rules, now_text: str = "") -> list[str]:
    """Return the arguments of a settle."""
    return [*rules_args(rules), now_text, *_ends_args(ends)]


def begin_args(
    lease: str, verdict: Verdict, epoch: int | None = None, now_text: str = ""
) -> list[str]:
    """Return the arguments of a begin of a lease that its process holds in ``epoch``."""
    return [lease, verdict.value, _or_empty(epoch), now_text]


def used_args(lease: str, key: str, units: int, rules: Rules, now_text: str = "") -> list[str]:
    """Return the arguments of a report of the units that a body has used."""
    return [*rules_args(rules), now_text, lease, key, str(units)]


def read_settle(answer: Sequence[Any]) -> list[Settled]:
    """Read the answer to a settle: one for each end."""
    return [Settled(int(each)) for each in answer]


def move_to_list_args(
    rules: Rules, plain: str, entry: str, lease: str = "", tag: str = "", now_text: str = ""
) -> list[str]:
    """Return the arguments of a move of one task to the list ``plain``, by lease or by tag."""
    return [*rules_args(rules), now_text, lease, tag, plain, entry]


def move_out_args(
    page: str,
    queues: Sequence[str],
    most: int,
    lease_ms: int,
    closed: str | None = None,
    back: bool = False,
    now_text: str = "",
) -> list[str]:
    """Return the arguments of a call for the next page of tasks that leave.

    Args:
        page: The name of the page that the call may open.
        closed: The page that was brought in, if there is one.
        back: Whether the tasks of ``closed`` go back to their places instead.
    """
    return json_args(
        page=page,
        queues=list(queues),
        most=most,
        lease_ms=lease_ms,
        closed=closed,
        back=back,
        frozen_ms=now_text,
    )


def move_in_args(page: str, rows: Sequence[str], lease_ms: int, now_text: str = "") -> list[str]:
    """Return the arguments of bringing in tasks.

    Args:
        page: The page that has them.
        rows: Six texts of each task, as ``move_out`` returns them.
    """
    return [*json_args(page=page, lease_ms=lease_ms, frozen_ms=now_text), *rows]


def renew_args(
    held: Sequence[tuple[str, str]], rules: Rules, epoch: int | None = None, now_text: str = ""
) -> list[str]:
    """Return the arguments of a renewal of leases that were taken in ``epoch``."""
    return [*rules_args(rules), _or_empty(epoch), now_text, *chain.from_iterable(held)]


def epoch_args(
    lease_ms: int, partitions: int | None, now_text: str = "", place: str = ""
) -> list[str]:
    """Return the arguments of a read of the epoch.

    Args:
        partitions: The number of partitions by the settings. None in a partition itself.
        place: The position of the server in a list of servers, as in ``2/3``.
    """
    args = [str(lease_ms), now_text, _or_empty(partitions)]
    return [*args, place] if place else args


def ring_args(partition: int, new: Sequence[str], left: Sequence[str] = ()) -> list[str]:
    """Return the arguments of waking workers for queues of one partition.

    Args:
        new: Queues to which a task came.
        left: Queues in which a claim has left tasks.
    """
    return json_args(partition=partition, new=list(new) or None, left=list(left) or None)


def request_permits_args(
    key: str,
    rules: Rules,
    home: int | None = None,
    after: int | None = None,
    now_text: str = "",
) -> list[str]:
    """Return the arguments of a request for permits of ``key``.

    Args:
        home: The epoch of a home that counts the permits of all partitions. None without a count.
        after: The number of the request whose turn has come. None if there is another reason.
    """
    return [*rules_args(rules), now_text, key, _or_empty(home), _or_empty(after)]


def grant_permits_args(
    key: str,
    partitions: int,
    reports: Sequence[Mapping[str, Any]],
    rules: Rules,
    counts: int | None = None,
    now_text: str = "",
) -> list[str]:
    """Return the arguments of a grant to partitions.

    Args:
        reports: Answers of requests, each with its ``partition``.
        counts: What a grant answered as ``counts`` before these requests, if they are a count.
    """
    wanted = json_args(key=key, partitions=partitions, reports=list(reports), counts=counts)
    return [*rules_args(rules), now_text, *wanted]


def accept_permits_args(
    key: str, run: str, home: int, answer: Mapping[str, Any], rules: Rules, now_text: str = ""
) -> list[str]:
    """Return the arguments of the acceptance of a home's answer to a request."""
    return [*rules_args(rules), now_text, key, *json_args(run=run, home=home, **answer)]


def due_permits_args(rules: Rules, keys: Iterable[str] = (), now_text: str = "") -> list[str]:
    """Return the arguments of a look for keys of which the caller requests permits.

    Args:
        keys: The keys of the caller's running tasks.
    """
    return [*rules_args(rules), now_text, *keys]


def read_renew(answer: Sequence[Any]) -> tuple[int, list[int]]:
    """Read the answer to a renewal: the epoch, and the positions (from 1) of missing leases."""
    epoch, *missing = answer
    return int(epoch), [int(each) for each in missing]


def renewal_of(leases: Sequence[T], answer: Sequence[Any], epoch: int | None) -> Renewal[T]:
    """Read the answer to a renewal of ``leases``, which the caller has taken in ``epoch``."""
    new_epoch, positions = read_renew(answer)
    missing = tuple(leases[position - 1] for position in positions)
    if epoch in (None, new_epoch):
        return Renewal(missing, new_epoch)
    return Renewal((), new_epoch, missing)


def announce_args(
    rules: Rules,
    worker: str,
    lives_ms: int,
    epoch: int | None,
    now_text: str = "",
    limits: Iterable[str] = (),
) -> list[str]:
    """Return the arguments of an announcement.

    Args:
        limits: The limits that the worker's app declares, as text.
    """
    begin = [str(rules.lease_ms), worker, str(lives_ms), _or_empty(epoch), now_text]
    return [*begin, rules.enforcement, *limits]


def read_acquire(answer: bytes | str) -> tuple[list[int], list[str]]:
    """Return the five numbers and the three words of the answer of ``acquire``."""
    parts = as_text(answer).split(" ")
    return [int(number) for number in parts[:5]], parts[5:]


def read_announce(answer: bytes | str) -> bool:
    """Return whether Redis has lost its memory since the epoch of the caller."""
    return as_text(answer) == "lost"


def size_args(queue: str, now_text: str = "") -> list[str]:
    """Return the arguments of a count of a queue's waiting tasks."""
    return [queue, now_text]


def expire_queues_args(
    kept_ms: Mapping[str, int], declared: bool = False, now_text: str = ""
) -> list[str]:
    """Return the arguments of the expiry of unused queues.

    ``kept_ms`` has the queues in use now, each with the time for which it is kept unused.
    """
    args = [now_text, "declared" if declared else ""]
    for queue, kept in kept_ms.items():
        args += (queue, str(kept))
    return args


def next_outcome_args(written: str, rules: Rules, now_text: str = "") -> list[str]:
    """Return the arguments of a call for the next outcome."""
    return [written, *rules_args(rules), now_text]


def read_next_outcome(answer: Sequence[Any]) -> Outcome | None:
    """Read the answer to a call for the next outcome."""
    if not answer:
        return None
    seq, tag, owner, state, queue, tenant, deaths, message = map(as_text, answer)
    return Outcome(int(seq), tag, owner, state, queue, tenant, int(deaths), message)


def json_args(**wanted: Any) -> list[str]:
    """Return the argument of a function that takes a JSON object, without fields that are None."""
    given = {name: value for name, value in wanted.items() if value is not None}
    return [json.dumps(given, ensure_ascii=False)]


def stop_args(
    how: str,
    key: str,
    wait_ms: int,
    lease_ms: int,
    enforcement: str,
    now_text: str = "",
    reason: str = "",
    by: str = "",
    times: Mapping[str, int | None] = MappingProxyType({}),
) -> list[str]:
    """Return the arguments of a change of a key's holds.

    ``times`` has the begin and the end of a pause that another partition has too.
    """
    return json_args(
        how=how,
        key=key,
        wait_ms=wait_ms,
        lease_ms=lease_ms,
        enforcement=enforcement,
        frozen_ms=now_text,
        reason=reason,
        by=by,
        **times,
    )


class Stopped(NamedTuple):
    """The holds of a key after such a change.

    Attributes:
        cool_ms: The rest of the cool-down. 0 if there is none.
        pause_ms: The rest of the pause. 0 if there is none, None if it has no end.
        now_ms: The server's time.
        since_ms: The beginning of the pause. None if there is none.
        by: The person who paused the key.
    """

    cool_ms: Milliseconds
    pause_ms: Milliseconds | None
    now_ms: int
    since_ms: int | None
    by: str


def read_stop(answer: bytes | str) -> Stopped:
    """Read the answer to a change of a key's holds."""
    found = json.loads(answer)
    pause_ms, since_ms = found.get("pause_ms"), found.get("since_ms")
    return Stopped(
        Milliseconds(int(found["cool_ms"])),
        None if pause_ms is None else Milliseconds(int(pause_ms)),
        int(found["now_ms"]),
        None if since_ms is None else int(since_ms),
        found.get("by", ""),
    )


def report_args(
    key: str,
    cool_ms: int | None,
    left: int | None,
    left_ms: int,
    lease_ms: int,
    now_text: str = "",
    reason: str = "",
) -> list[str]:
    """Return the arguments of what an API has reported. None is what it has not reported."""
    said: dict[str, Any] = {} if cool_ms is None else {"cool_ms": cool_ms}
    if left is not None:
        said |= {"left": left, "left_ms": left_ms}
    return json_args(key=key, lease_ms=lease_ms, frozen_ms=now_text, reason=reason, **said)


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
    """Return the arguments of an override, with ``config.numbers.write_numbers`` as numbers."""
    return json_args(
        key=key,
        numbers=numbers,
        lasts_ms=lasts_ms,
        ends_ms=ends_ms,
        details=details,
        lease_ms=lease_ms,
        enforcement=enforcement,
        frozen_ms=now_text,
    )


def read_override(answer: bytes | str) -> bool:
    """Return whether the numbers were overridden; False if the end is in the past."""
    return not json.loads(answer)["is_past"]


def copy_queue_args(
    queue: str, key: str, row: str, before: str, lease_ms: int, enforcement: str, now_text: str = ""
) -> list[str]:
    """Return the arguments that give a partition the row of a queue, or "", of the home.

    ``before`` is the row that the partition had. If it has another one by then, nothing changes.
    """
    wanted = {"how": "copy", "queue": queue, "key": key, "numbers": "", "part": ""}
    times = {"lease_ms": lease_ms, "enforcement": enforcement, "frozen_ms": now_text}
    return json_args(**wanted, row=row, before=before, **times)


def queue_args(
    how: str,
    queue: str,
    key: str,
    numbers: str,
    part: str,
    lease_ms: int,
    enforcement: str,
    now_text: str = "",
) -> list[str]:
    """Return the arguments of a change of a queue's limit.

    ``numbers`` of the whole queue and ``part`` of each partition are "" or a text of
    ``config.queue_limits.write_queue``.
    """
    return json_args(
        how=how,
        queue=queue,
        key=key,
        numbers=numbers,
        part=part,
        lease_ms=lease_ms,
        enforcement=enforcement,
        frozen_ms=now_text,
    )


def tiers_args(rows: Mapping[str, str], source: str, *, force: bool = True) -> list[str]:
    """Return the arguments of a publication of tiers: the JSON of each by name."""
    return json_args(source=source, force=force, tiers=rows)


def tenant_args(
    key: str, tier: str, numbers: str = "", keep_ms: int = 0, ends_ms: int | None = None
) -> list[str]:
    """Return the arguments of a publication of a tenant. ``key`` has no prefix."""
    return json_args(key=key, tier=tier, numbers=numbers, keep_ms=keep_ms, ends_ms=ends_ms)


def cancel_args(tags: Sequence[str], lease_ms: int, now_text: str = "") -> list[str]:
    """Return the arguments of cancelling the waiting tasks with these tags."""
    return [str(lease_ms), now_text, *tags]


def read_done(answer: Sequence[Any]) -> list[bool]:
    """Read the answer to a cancel or a reroute: for each task whether it was done."""
    return [int(each) == 1 for each in answer]


def reroute_args(target: str, tasks: Sequence[tuple[str, str]]) -> list[str]:
    """Return the arguments of rerouting tasks, each with the key of its new partition or ""."""
    return [target, *chain.from_iterable(tasks)]


def trace_args(wait_ms: int, now_text: str = "") -> list[str]:
    """Return the arguments of turning the trace on for ``wait_ms``."""
    return [str(wait_ms), now_text]


def rules_args(rules: Rules) -> tuple[str, ...]:
    """Return the arguments about a worker's settings."""
    return (
        str(rules.lease_ms),
        rules.enforcement,
        rules.default_tier,
        write_numbers({"concurrency": rules.default_limit, **rules.default_numbers}),
        str(rules.max_deliveries),
    )


def _ends_args(ends: Sequence[Settle]) -> list[str]:
    """Return ends in the form that settle and claim read: two arguments each."""
    args: list[str] = []
    for end in ends:
        args += (end.lease, end.verdict.value + ("" if end.begun else "-"))
    return args


def _or_empty(number: int | None) -> str:
    return "" if number is None else str(number)


def as_text(value: Any) -> str:
    """Return an answer as text."""
    return value.decode() if isinstance(value, bytes) else str(value)
