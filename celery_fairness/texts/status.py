"""The text of a status and its verdict."""

from __future__ import annotations

from typing import Any

import click

from celery_fairness.config.numbers import NUMBERS, UNLIMITED
from celery_fairness.control.health.verdict import clock_text
from celery_fairness.control.health.views import Status, Verdict
from celery_fairness.control.key.limit_in_force import number_text
from celery_fairness.texts.format import (
    count,
    table,
    weight_text,
)
from celery_fairness.texts.queues import queue_table
from celery_fairness.texts.workers import OWNERS_SHOWN, replies_lines, workers_lines
from celery_fairness.util.printable import printable

_TIER = (
    *(
        "tier",
        "concurrency",
        "burst",
        "rate",
        "throttle",
        "weight",
        "queue class",
        "max waiting",
        "rejected",
    ),
)


def status_lines(status: Status) -> list[str]:
    """Return a status for people."""
    where = f"{status.redis}, namespace {status.namespace}"
    lines = [f"{status.path} path, {where}, config version {status.config_version}"]
    lines += ["", *verdict_lines(status.verdict), "", *workers_lines(status.workers)]
    lines += replies_lines(status.replies)
    if status.queues:
        lines += ["", *queue_table(status.queues)]
    more = status.queue_count - len(status.queues)
    if more > 0:
        lines.append(f"and {count(more, 'queue')} with fewer waiting tasks: queue list shows all")
    owners = [(each.owner, each.leases) for each in status.owners]
    shown_owners = owners[:OWNERS_SHOWN]
    lines += ["", *table(("owner", "leases"), shown_owners, empty="no leases are held")]
    if len(owners) > OWNERS_SHOWN:
        lines.append(f"and {len(owners) - OWNERS_SHOWN} more owners: --json has all")
    tiers = [
        (
            each.tier,
            number_text(each.concurrency),
            "" if each.burst is None else each.burst,
            _rate_text(each.rate),
            _rate_text(each.throttle),
            weight_text(each.weight),
            each.queue_class,
            number_text(each.max_waiting),
            each.rejected,
        )
        for each in status.tiers
    ]
    lines += ["", *table(_TIER, tiers)]
    lines.append(f"tiers are from {status.tiers_from or 'the settings: none are published'}")
    lines += ["", *table(("count", ""), sorted(status.counts.items()), empty="no counts yet")]
    return lines


def _rate_text(rate: dict[str, Any] | None) -> str:
    return UNLIMITED if rate is None else NUMBERS["rate"].kind.show_one(rate)


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return a verdict with its causes, what was ruled out and when, and what was not checked."""
    lines = [verdict_line(verdict)]
    lines += [f"  {printable(cause)}" for cause in verdict.causes]
    at = "" if verdict.at is None else f" at {clock_text(verdict.at)}"
    lines += [f"  not the cause{at}: {printable(each)}" for each in verdict.ruled_out]
    return [*lines, *(f"  not checked: {printable(each)}" for each in verdict.unchecked)]


def verdict_line(verdict: Verdict) -> str:
    """Return a verdict's sentence."""
    color = {"ok": "green", "busy": "yellow", "trouble": "red"}[verdict.level]
    return click.style(printable(verdict.line), fg=color)
