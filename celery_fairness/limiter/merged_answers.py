"""Answers of the partitions of an installation, as one answer of the same form.

Each function takes the answers that the partitions gave to one question. A single answer is
returned as it is, so an installation with one partition pays nothing.

Weakness: the answers are of slightly different moments, and the times in them are those of each
partition's server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

#: Leases of a key in one answer, as in the function ``inspect``.
LEASES = 100

Answer = Mapping[str, Any]


def whole_overview(ask: Callable[..., Answer], only: str) -> Answer:
    """Return the overview of one partition with all queues, or with the only one.

    The order of its queues is not that of the sums, so a page of it is of no use.

    Args:
        ask: Returns the page of an overview that begins with the queue of index ``first``.
        only: The only queue. "" for all.
    """
    answer, rows = ask(first=0), dict[str, Sequence[Any]]()
    more = answer.get("queues", ())
    while more:
        # The order may change between two pages.
        rows |= {row[0]: row for row in more if row[0] not in rows}
        if only or len(rows) >= answer["queue_count"]:
            break
        more = ask(first=len(rows)).get("queues", ())
    return {**answer, "queues": list(rows.values())}


def merge_overviews(answers: Sequence[Answer], first: int) -> Answer:
    """Return one answer of ``overview`` with the queues from index ``first`` on.

    The partitions may have looked at samples of different parts of their running tasks. So the
    numbers of each sample are scaled to the part of all tasks together that was looked at.
    """
    sampled = sum(each["sampled"] for each in answers)
    running = sum(each["running"] for each in answers)
    queues: dict[str, list[Any]] = {}
    owners: Counter[str] = Counter()
    tiers: Counter[str] = Counter()
    for answer in answers:
        in_part = max(1, answer["sampled"]) * max(1, running)
        scale = answer["running"] * sampled / in_part if sampled < running else 1
        for row in answer["queues"]:
            numbers = [*row[1:-1], row[-1] * scale]
            known = queues.get(row[0], [0] * len(numbers))
            queues[row[0]] = [one + more for one, more in zip(known, numbers, strict=True)]
        for counts, name in ((owners, "owners"), (tiers, "tiers")):
            for key, tasks in answer.get(name, ()):
                counts[key] += tasks * scale
    ordered = sorted(queues.items(), key=lambda queue: (-queue[1][0], queue[0]))
    return {
        "now": max(each["now"] for each in answers),
        "queues": [[name, *numbers] for name, numbers in ordered][first:],
        "queue_count": len(queues),
        "running": running,
        "sampled": sampled,
        "owners": _most_first(owners),
        "tiers": _most_first(tiers),
    }


def merge_totals(answers: Sequence[Answer]) -> Answer:
    """Return one answer of ``totals``: sums, and each limit once."""
    if len(answers) == 1:
        return answers[0]
    totals: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    limits: dict[str, list[Any]] = {}
    for answer in answers:
        # An empty table of Lua is a list in JSON.
        totals.update(answer["totals"] or {})
        counts.update(answer["counts"] or {})
        for key, held, maximum, waiting, why, saturated_ms in answer["limits"] or ():
            known = limits.setdefault(key, [key, 0, maximum, 0, why, 0])
            known[1] += held
            known[3] += waiting
            known[5] = max(known[5], saturated_ms)
            # The key lets a task start if it does so in one partition.
            known[4] = known[4] and why
    return {
        "now": answers[0]["now"],
        "totals": totals,
        "counts": counts,
        "limits": [*limits.values()],
    }


def merge_keys(answers: Sequence[Answer]) -> Answer:
    """Return one answer of ``inspect``: sums, and the facts of the partition with most tasks."""
    if len(answers) == 1:
        return answers[0]
    known = [each for each in answers if each["known"]]
    found = dict(max(known or answers, key=lambda each: each["held"] + each["waiting_count"]))
    for name in ("held", "ended_unswept", "waiting_count", "delayed_count"):
        if name in found:
            found[name] = sum(each.get(name, 0) for each in answers)
    leases = [lease for each in answers for lease in each.get("leases", ())]
    found["leases"] = sorted(leases, key=lambda lease: lease["ends_ms"])[:LEASES]
    found["waited"] = [row for each in answers for row in each.get("waited", ())]
    found["waiting"] = _summed([row for each in answers for row in each.get("waiting", ())])
    found["full_in"] = sorted({queue for each in answers for queue in each.get("full_in", ())})
    blocked = [each.get("blocked_by") for each in known]
    if not all(blocked):
        found.pop("blocked_by", None)
        found.pop("opens_ms", None)
    return found


def _summed(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Return rows ``[QUEUE, RANK, TASKS]``, those of one queue and rank as one."""
    tasks: Counter[tuple[str, int]] = Counter()
    for queue, rank, number in rows:
        tasks[queue, rank] += number
    ordered = sorted(tasks, key=lambda place: (place[0], -place[1]))
    return [[queue, rank, tasks[queue, rank]] for queue, rank in ordered]


def _most_first(counts: Mapping[str, int]) -> list[list[Any]]:
    return [[name, counts[name]] for name in sorted(counts, key=lambda each: (-counts[each], each))]
