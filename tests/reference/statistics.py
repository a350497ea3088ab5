"""The statistics of one call: rejections by key, and starts by minute, tier and queue.

A claim counts each task that it starts once, with the power of two of its wait. It counts a
rejection for a limit that rejects, and at least once for each event that reports one.

Weakness: no rule demands a number of rejections, because a claim may meet one head more than once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from tests.reference.objection import require

#: The count of a start that is not the first of its task.
STARTED = "started"
ALONE, BEHIND_OWN = "alone", "behind_own"


def start_of(waited_ms: int | None, is_noisy: bool) -> str:
    """Return how a minute counts a start.

    Args:
        waited_ms: None for a start that is not the first of its task.
        is_noisy: The task began to wait behind another task of its tenant.
    """
    if waited_ms is None:
        return STARTED
    return f"{BEHIND_OWN if is_noisy else ALONE}:{max(0, waited_ms).bit_length()}"


#: How an attempt ends whose body has begun.
ENDS = ("done", "failed", "retried")


def check_ends(counted: Mapping[str, int], ends: Counter[str], others: float) -> None:
    """Compare what a call counted in its minute with the attempts that it has ended.

    Args:
        counted: What was counted.
        ends: The ends of claimed tasks.
        others: Leases that ended whose task is not here. Some of them name their task, and count.
    """
    got = Counter({x: number for x, number in counted.items() if x.split(" ", 1)[0] in ENDS})
    is_right = got >= ends and (got - ends).total() <= others
    require(is_right, "a minute counts every end once", expected=ends, others=others, got=got)


def check_minute(counted: Mapping[str, int], starts: Counter[tuple[str, str, str]]) -> None:
    """Compare what a call counted in its minute with its starts: how, tier and queue."""
    got: Counter[tuple[str, str, str]] = Counter()
    for field, number in counted.items():
        what, tier, queue = field.split(" ", 2)
        if what not in ("rejected", *ENDS):
            got[what, tier, queue] += number
    require(got == starts, "a minute counts every start once", expected=starts, got=got)


def check_rejections(
    counted: Mapping[str, int],
    reported: Counter[tuple[str, str]],
    is_rejecting: Callable[[str], bool],
) -> None:
    """Check what a call counted of rejections.

    Args:
        counted: By strategy and key.
        reported: Strategies and keys of the events of these rejections.
        is_rejecting: Whether a limit of a key rejects some task.
    """
    for field in counted:
        _, key = field.split(" ", 1)
        require(is_rejecting(key), "only a limit that rejects counts a rejection", field=field)
    for (strategy, key), number in reported.items():
        got = counted.get(f"{strategy} {key}", 0)
        rule = "every reported rejection is counted"
        require(got >= number, rule, strategy=strategy, key=key, reported=number, counted=got)
