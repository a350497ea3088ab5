"""The text of ``observed``: a bar for each hour, and tables of tiers and tenants."""

from __future__ import annotations

from celery_fairness.control.health.views import Observed
from celery_fairness.control.key.limit_in_force import number_text
from celery_fairness.texts.format import count, table

#: Characters of the longest bar.
BAR = 40

_TIER = ("tier", "limit", "would be rejected", "tenants", "most at once")
_TENANT = ("tenant", "tier", "would be rejected", "most at once")


def observed_lines(found: Observed) -> list[str]:
    """Return what would have been rejected, for people."""
    since = "" if found.since is None else f"; counted since {found.since:%Y-%m-%d %H:%M} UTC"
    verb = "observes" if found.observing == 1 else "observe"
    lines = [f"{found.observing} of {count(found.workers, 'worker')} only {verb}{since}", ""]
    if not found.over_limit:
        return [*lines, *_nothing(found)]
    lines += [f"{count(found.over_limit, 'task')} started above the limit of a tier, by hour (UTC)"]
    lines += ["", *_bars(found), ""]
    tiers = [
        (each.tier, number_text(each.concurrency), each.over_limit, each.tenants, each.most_at_once)
        for each in found.tiers
    ]
    tenants = [(each.key, each.tier, each.over_limit, each.most_at_once) for each in found.tenants]
    lines += [*table(_TIER, tiers), "", *table(_TENANT, tenants, empty="no tenant is named")]
    if found.others:
        lines.append(f"and {count(found.others, 'task')} of other tenants")
    return lines


def _nothing(found: Observed) -> list[str]:
    lines = [f"no task of the last {len(found.hours)} hours started above the limit of a tier"]
    if not found.observing:
        lines.append("workers that are started with FAIRNESS_ENABLED=observe count such tasks")
    return lines


def _bars(found: Observed) -> list[str]:
    """Return a line for each hour from the first one with a task."""
    most = max(each.over_limit for each in found.hours)
    first = next(number for number, each in enumerate(found.hours) if each.over_limit)
    width = len(str(most))
    return [
        f"{each.at:%m-%d %H:00}  {each.over_limit:>{width}}  "
        # A few tasks are still one character.
        f"{'#' * -(-BAR * each.over_limit // most)}".rstrip()
        for each in found.hours[first:]
    ]
