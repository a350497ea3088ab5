"""The check of an installation's tables: they are compared, and repaired, while workers go on.

This module walks over the names of all keys. Each call of the check library looks at a few rows as
one. So a finding is a difference at one moment, and workers may go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from celery_fairness.config.numbers import write_numbers
from celery_fairness.config.tiers import tier_numbers
from celery_fairness.control.health.views import Check, Finding
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import batches
from celery_fairness.limiter.redis import Limiter
from celery_fairness.store.connection import REDIS_ERRORS
from celery_fairness.store.library import check_library

#: Keys that one call is given. It returns those to which it did not come.
KEYS = 200
#: A repair of one table may show that another was wrong. Then the keys are walked again.
PASSES = 3

Progress = Callable[[int], None]


class _Kind(NamedTuple):
    """The meaning of a finding, what its repair does, and what a person can do."""

    problem: str
    repair: str = ""
    advice: str = ""


#: By the names that the functions of ``store/lua/check`` return.
KINDS = {
    "slot_without_task": _Kind("no task runs under this lease", "gave the slot back"),
    "task_not_counted": _Kind("this running task does not count here", "counted it"),
    "task_without_end": _Kind(
        "if its worker dies, this task does not run again", "gave it an end, one lease from now"
    ),
    "tenant_count": _Kind(
        "the count of the tenant's waiting tasks in this queue is wrong", "counted them"
    ),
    "queue_count": _Kind("the count of waiting tasks of this queue is wrong", "counted them"),
    "task_without_turn": _Kind(
        "the tenant has no turn in this queue, so its tasks do not start", "gave it a turn"
    ),
    "turn_without_task": _Kind(
        "the tenant has a turn in this queue, and no task", "removed the turn"
    ),
    "lane_lost": _Kind("no claim finds these tasks", "put them back into their order"),
    "blocked_lane_lost": _Kind(
        "these tasks wait at a limit, and nothing will wake them", "made them ready"
    ),
    "wait_without_task": _Kind("this waits at a limit, and has no task", "removed it"),
    "limit_left_exhausted": _Kind(
        "tasks wait at this limit, which would let one start", "woke the queue"
    ),
    "tenant_left_at_limit": _Kind(
        "the tenant is below its limit, and its tasks do not start", "let them start"
    ),
    "tenant_marks": _Kind(
        "two tables disagree whether the tenant is at its limit", "checked it again"
    ),
    "age_lost": _Kind("its waiting time does not count (priority_aging)", "made it count again"),
    "lend_index": _Kind("who may be lent places is wrong for this tenant", "noted it again"),
    "rank_index": _Kind("the index by priority is wrong for this tenant", "indexed it again"),
    "flag_missing": _Kind("without this flag workers overlook a table", "set the flag"),
    "saving_without_task": _Kind(
        "this key saves slots or units, and no task waits for them", "ended the saving"
    ),
    "slots_not_counted": _Kind(
        "the slots of this key do not agree with what its tasks take", "counted them again"
    ),
    "starts_lost": _Kind("the limit's past starts do not add up", "added up those that are left"),
    "unique_without_task": _Kind("no task has this unique key", "removed it"),
    "queue_limit_lost": _Kind("no claim finds the limit of this queue", "entered it"),
    "task_without_message": _Kind("the record of this task is lost", "removed the task"),
    "message_lost": _Kind(
        "the message of this task is lost",
        advice="leave it while it runs; once it waits in its lane, "
        "celery -A APP fairness check --repair removes it",
    ),
    "message_without_task": _Kind(
        "this message belongs to no task",
        advice="read it with HGET, send it again if its task must run, then remove it with HDEL",
    ),
    "task_without_id": _Kind("no search by id finds this task", "entered its id"),
    "scheduled_task_lost": _Kind("no purge of its tenant finds this scheduled task", "entered it"),
    "scheduled_task_gone": _Kind("this is no scheduled task of the tenant", "removed it"),
    "task_without_place": _Kind(
        "this task waits in no queue, and does not run",
        advice="read its message with HGET from messages, send it again, then remove both fields "
        "with HDEL",
    ),
    "promotion_without_task": _Kind(
        "the record of this promoted task is lost", "gave its slots back"
    ),
    "sent_task_known": _Kind(
        "the broker has this promoted task again, and its record is left", "removed the record"
    ),
    "start_without_promotion": _Kind(
        "no promoted task has reserved this start", "gave the start back"
    ),
    "unreadable": _Kind(
        "this cannot be read", advice="look at it, and remove it if it is not ours"
    ),
}


def check(installation: Installation, *, repair: bool, progress: Progress | None) -> Check:
    """Compare the tables of an installation; see ``Fairness.check``."""
    found: dict[tuple[str, str, str], Finding] = {}
    default = installation.settings.tiers[installation.settings.default_tier]
    rules = (
        str(installation.lease_ms),
        default.name,
        write_numbers(tier_numbers(default, "tenant")),
        "",
    )
    for _ in range(PASSES if repair else 1):
        keys = 0
        before = len(found)
        for store, batch in _keys(installation):
            # Each key with a cursor of its own.
            rest = [word for key in batch for word in (key, "0")]
            while rest:
                args = (*rules, *rest)
                rest, rows = _call(store, args, repair=repair)
                for name, key, row, repaired, problem in rows:
                    its_key = key if store is installation.limiter else store.prefix + key
                    each = _finding(name, its_key, row, bool(repaired), problem)
                    found[name, its_key, row] = each
            keys += len(batch)
            if progress:
                progress(keys)
        if len(found) == before:
            break
    return Check(findings=tuple(found.values()), keys=keys)


def _keys(installation: Installation) -> Iterator[tuple[Limiter, list[str]]]:
    """Yield the names of the keys of the home and of each partition in groups."""
    limiter, reader = installation.limiter, installation.reader
    for store, its in zip(limiter.stores, reader.stores, strict=True):
        for batch in batches(its.scan(), KEYS):
            yield store, batch


def _call(limiter: Limiter, args: tuple[str, ...], *, repair: bool) -> Any:
    function = "repair" if repair else "check"
    with limiter.naming():
        try:
            return limiter.connection.execute(function, limiter.prefix, args, check_library())
        except REDIS_ERRORS as error:
            raise limiter.connection.unavailable(error) from error


def _finding(name: str, key: str, row: str, repaired: bool, problem: str) -> Finding:
    kind = KINDS[name]
    by_repair = "look at it by hand" if problem else "celery -A APP fairness check --repair"
    advice = kind.advice or ("" if repaired else by_repair)
    told = f"{kind.problem}: {problem}" if problem else kind.problem
    return Finding(
        check=name,
        key=key,
        row=row,
        problem=told,
        repaired=kind.repair if repaired else "",
        advice=advice,
    )
