"""Answers of the partitions of an installation, as one answer of the same form.

Each function takes the answers that the partitions gave to one question. A single answer is
returned as it is, so an installation with one partition pays nothing.

Weakness: the answers are of slightly different moments, and the times in them are those of each
partition's server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from celery_fairness.config.numbers import read_numbers

#: Leases of a key in one answer, as in the function ``inspect``.
LEASES = 100
#: The reasons that stop a key, however much it counts, in the words of ``totals`` and ``inspect``.
STOPS = frozenset({"paused", "cools", "cool-down"})

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


def merge_totals(answers: Sequence[Answer], enforced: bool = True) -> Answer:
    """Return one answer of ``totals``: sums, and each limit once.

    Args:
        answers: The answers.
        enforced: Whether the caller enforces limits.
    """
    if len(answers) == 1:
        return answers[0]
    totals: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    rows = defaultdict[str, list[Sequence[Any]]](list)
    for answer in answers:
        # An empty table of Lua is a list in JSON.
        totals.update(answer["totals"] or {})
        counts.update(answer["counts"] or {})
        for row in answer["limits"] or ():
            rows[row[0]].append(row)
    return {
        "now": answers[0]["now"],
        "totals": totals,
        "counts": counts,
        "limits": [_merged_limit(its, enforced) for its in rows.values()],
    }


def _merged_limit(rows: Sequence[Sequence[Any]], enforced: bool) -> list[Any]:
    """Return one row of ``totals`` for the rows of one key, without its windows."""
    key, _, maximum, _, why, *_ = rows[0]
    held, waiting = (sum(each[place] for each in rows) for place in (1, 3))
    saturated_ms = max(each[5] for each in rows)
    if not all(each[4] in STOPS for each in rows):
        most = None if maximum < 0 else maximum
        rates = _merged_rates(each[6] or () for each in rows)
        throttle_ms = max((each[7][2] for each in rows if each[7]), default=0)
        why = _closed_by(held, most, rates, throttle_ms)[0] if enforced else ""
    return [key, held, maximum, waiting, why, saturated_ms]


def _merged_rates(rates: Iterable[Iterable[Sequence[int]]]) -> list[list[int]]:
    """Return rows ``[STARTS, PERIOD_MS, COUNT, WAIT_MS]`` with what all partitions count.

    WAIT_MS is the time until the first of the starts leaves the window.
    """
    found: dict[tuple[int, int], list[int]] = {}
    for starts, period_ms, count, wait_ms in chain(*rates):
        known = found.setdefault((starts, period_ms), [starts, period_ms, 0, 0])
        known[2] += count
        known[3] = min((each for each in (known[3], wait_ms) if each), default=0)
    return [*found.values()]


def _closed_by(
    held: int, most: int | None, rates: Iterable[Sequence[int]], throttle_ms: int
) -> tuple[str, int | None]:
    """Return which number lets no task start by what all partitions count, and for how long.

    The time is None if that needs the end of a lease, or if no number is in the way.
    """
    if most is not None and held >= most:
        return "full", None
    waits_ms = [wait_ms for starts, _, count, wait_ms in rates if count >= starts]
    if waits_ms:
        return "rate", max(*waits_ms, throttle_ms)
    return ("throttle", throttle_ms) if throttle_ms else ("", None)


def merge_keys(answers: Sequence[Answer], enforced: bool = True) -> Answer:
    """Return one answer of ``inspect``: sums, and the facts of the partition with most tasks.

    Args:
        answers: The answers.
        enforced: Whether the caller enforces limits.
    """
    if len(answers) == 1:
        return answers[0]
    known = [each for each in answers if each["known"]] or answers
    found = dict(max(known, key=lambda each: each["held"] + each["waiting_count"]))
    for name in ("held", "ended_unswept", "waiting_count", "delayed_count"):
        if name in found:
            found[name] = sum(each.get(name, 0) for each in answers)
    leases = [lease for each in answers for lease in each.get("leases", ())]
    found["leases"] = sorted(leases, key=lambda lease: lease["ends_ms"])[:LEASES]
    found["waited"] = [row for each in answers for row in each.get("waited", ())]
    found["waiting"] = _summed([row for each in answers for row in each.get("waiting", ())])
    found["full_in"] = sorted({queue for each in answers for queue in each.get("full_in", ())})
    rates = _merged_rates(each.get("rates", ()) for each in answers)
    throttle_ms = max((each["throttle"][2] for each in answers if "throttle" in each), default=0)
    if rates:
        found["rates"] = rates
    if "throttle" in found:
        found["throttle"] = [*found["throttle"][:2], throttle_ms]
    if not all(each.get("blocked_by") in STOPS for each in known):
        most = read_numbers(found["numbers"]).get("concurrency")
        why, opens_ms = _closed_by(found["held"], most, rates, throttle_ms)
        if not enforced:
            why, opens_ms = "", None
        found["blocked_by"] = "concurrency" if why == "full" else why
        found["opens_ms"] = opens_ms
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
