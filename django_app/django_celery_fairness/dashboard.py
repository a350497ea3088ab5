"""The dashboard: one page that shows how the installation is, and stays current.

A script fetches the live part every two seconds while the page is visible. Pages that are open at
the same time share one look at Redis.

Weakness: pages share a look only within one process.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from celery_fairness.control.health.views import FailureCount
from celery_fairness.errors import FairnessError
from django_celery_fairness import charts, wiring
from django_celery_fairness.live_counts import LiveCounts
from django_celery_fairness.models import Dashboard
from django_celery_fairness.permissions import APP, Action
from django_celery_fairness.redis_pages import NOT_WIRED, RedisPageAdmin, quoted
from django_celery_fairness.tenant_rows import TenantRows

if TYPE_CHECKING:
    from celery_fairness.control.health.views import Minute, Observed, Status, WaitCount
    from celery_fairness.control.installation.views import WorkerStatus
    from celery_fairness.control.queue.views import BlockingLimit, QueueStatus, TenantShare

#: For how long pages share one look, in seconds. The statistics of minutes change more slowly.
FRESH_SECONDS, MINUTES_FRESH_SECONDS = 1.5, 20.0
#: Minutes in the chart of waits, and rows of the tables.
MINUTES, SHOWN = 60, 15


@dataclass(frozen=True, slots=True)
class Look:
    """A status, the statistics of the last hour, and what workers observed in the last day.

    Without a status, Redis does not answer (``away``), or this process has no ``Fairness``.
    """

    status: Status | None = None
    minutes: Sequence[Minute] = ()
    observed: Observed | None = None
    away: FairnessError | None = None


class _Shared:
    """The last look, for all requests of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._look = Look()
        self._at = self._minutes_at = float("-inf")

    def look(self) -> Look:
        """Return a look that is not older than :data:`FRESH_SECONDS`."""
        with self._lock:
            if time.monotonic() - self._at > FRESH_SECONDS:
                self._look = self._fetch()
                self._at = time.monotonic()
            return self._look

    def expire(self) -> None:
        """Look at the status again at the next request."""
        self._at = float("-inf")

    def forget(self) -> None:
        """Look again at the next request."""
        self._at = self._minutes_at = float("-inf")

    def _fetch(self) -> Look:
        parts = wiring.wired()
        if parts is None:
            return Look()
        stats = parts.fairness.stats
        minutes, observed = self._look.minutes, self._look.observed
        try:
            status = stats.status()
            if time.monotonic() - self._minutes_at > MINUTES_FRESH_SECONDS:
                minutes, observed = stats.minutes(MINUTES), stats.observed(top=SHOWN)
                self._minutes_at = time.monotonic()
        except FairnessError as error:
            return Look(away=error)
        return Look(status, minutes, observed)


shared = _Shared()


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker with the places of its pool that are taken, and the part of them in percent."""

    worker: WorkerStatus
    busy: int

    @property
    def percent(self) -> int:
        """The taken part of its places."""
        return round(100 * min(self.busy, self.worker.places) / max(1, self.worker.places))

    @property
    def queues(self) -> list[str]:
        """Its queues, each with its places if it has some of its own."""
        shares = self.worker.shares
        return [f"{each} {shares[each]}" if each in shares else each for each in self.worker.queues]


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant in a queue, with the part of its fair share that it holds.

    Attributes:
        queue: The queue.
        share: The tenant in it.
        row_url: The address of its row in the database, or "".
    """

    queue: str
    share: TenantShare
    row_url: str = ""

    @property
    def part(self) -> float | None:
        """Slots held against slots entitled; None if it is entitled to none."""
        entitled = self.share.entitled
        return self.share.held / entitled if entitled else None

    @property
    def percent(self) -> int:
        """The part in percent, at most 100. It is the length of a bar."""
        return round(100 * min(1.0, self.part or 0.0))


@admin.register(Dashboard)
class DashboardAdmin(RedisPageAdmin):
    """The admin of the dashboard."""

    def get_urls(self) -> list[URLPattern]:
        """Return the page."""
        return [self.route("", self.page, "changelist")]

    def page(self, request: HttpRequest) -> HttpResponse:
        """Show the page, or the part of it that changes."""
        self.expect_view(request)
        look = shared.look()
        LiveCounts.of_page(request).problem = look.away
        context: dict[str, Any] = {"is_live": True}
        status = look.status
        if status is None:
            context["problem"] = look.away or NOT_WIRED
        else:
            context |= {
                "status": status,
                "verdict": status.verdict,
                "queues": [
                    (each, self._queue_url(request, each.queue))
                    for each in status.queues
                    if _is_shown(each)
                ],
                "tenants": tenant_rows(self, request, longest_waits(status)),
                "limits": limits(status),
                "workers": workers(status),
                "waits": waits(look.minutes, status.at),
                "work": work(look.minutes, status.at),
            }
            if look.observed and (look.observed.observing or look.observed.over_limit):
                context |= {"observed": look.observed, "hours": hours(look.observed)}
        return self.show(request, "dashboard", _("Dashboard"), context)

    def _queue_url(self, request: HttpRequest, queue: str) -> str:
        # "" are parked tasks.
        if not queue or not Action.SEE_QUEUES.allowed(request.user):
            return ""
        name = f"admin:{APP}_queue_change"
        return reverse(name, args=[quoted(queue)], current_app=self.admin_site.name)


def _is_shown(queue: QueueStatus) -> bool:
    return bool(queue.waiting or queue.delayed or queue.running or queue.dead)


def longest_waits(status: Status) -> list[tuple[str, TenantShare]]:
    """Return the tenants that wait longest, each with its queue."""
    rows = [(queue.queue, each) for queue in status.queues for each in queue.tenants]
    rows.sort(key=lambda row: -(row[1].waits_seconds or 0.0))
    return rows[:SHOWN]


def tenant_rows(
    page: RedisPageAdmin, request: HttpRequest, shares: Sequence[tuple[str, TenantShare]]
) -> list[TenantRow]:
    """Return the rows of a table of tenants, from queues and the tenants in them."""
    rows = TenantRows(page, request, [share.key for _, share in shares])
    return [TenantRow(queue, share, rows.url(share.key)) for queue, share in shares]


def limits(status: Status) -> list[BlockingLimit]:
    """Return the limits at which the most tasks wait."""
    found = {each.key: each for queue in status.queues for each in queue.limits}
    return sorted(found.values(), key=attrgetter("waiting"), reverse=True)[:SHOWN]


def workers(status: Status) -> list[WorkerRow]:
    """Return the live workers with their taken places."""
    busy = {each.owner: each.leases for each in status.owners}
    return [WorkerRow(each, busy.get(each.owner, 0)) for each in status.workers]


@dataclass(frozen=True, slots=True)
class Work:
    """Starts and ends of the last hour, without the minute that still counts.

    Attributes:
        chart: Starts, ends and failures of each minute.
        rows: A name, the number of the last minute, and that of the hour.
        failures: The queues with the most failures and retries of the hour.
    """

    chart: SafeString
    rows: list[tuple[str, int, int]]
    failures: list[FailureCount]


def work(minutes: Iterable[Minute], now: datetime) -> Work:
    """Return what started and ended in each of the last full minutes."""
    known = {minute.at: minute for minute in minutes}
    last = now.astimezone(UTC).replace(second=0, microsecond=0)
    full = [known.get(last - timedelta(minutes=back)) for back in range(MINUTES - 1, 0, -1)]
    kinds = (
        (_("started"), "started", "alone"),
        (_("ended"), "ended", "behind_own"),
        (_("failed"), "failed", "failed"),
        (_("retried"), "retried", "retried"),
    )
    rows, lines = [], []
    for name, kind, css in kinds:
        points = [getattr(minute, kind) if minute else 0 for minute in full]
        rows.append((name, points[-1], sum(points)))
        lines.append(charts.Line(name, css, points))
    summary = _("In the last minute: %s.") % ", ".join(f"{each[1]:,} {each[0]}" for each in rows)
    chart = charts.rates(lines[:3], summary, _("an hour ago"), _("now"))
    return Work(chart, rows, _failures(minute for minute in full if minute))


def _failures(minutes: Iterable[Minute]) -> list[FailureCount]:
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for minute in minutes:
        for each in minute.failures:
            sums[each.queue].update(failed=each.failed, retried=each.retried)
    rows = [FailureCount(queue, each["failed"], each["retried"]) for queue, each in sums.items()]
    rows.sort(key=lambda row: (-row.failed, -row.retried, row.queue))
    return rows[:SHOWN]


def waits(minutes: Iterable[Minute], now: datetime) -> SafeString:
    """Return the chart of the waits in the last hour, by the 95th percentile of each minute."""
    at = {minute.at: minute for minute in minutes}
    last = now.astimezone(UTC).replace(second=0, microsecond=0)
    columns = [at.get(last - timedelta(minutes=back)) for back in reversed(range(MINUTES))]
    lines = [
        charts.Line(name, kind, [_p95(column, kind) if column else None for column in columns])
        for name, kind in (
            (_("no task of their own tenant before them"), "alone"),
            (_("behind tasks of their own tenant"), "behind_own"),
        )
    ]
    newest = [next((each for each in reversed(line.points) if each), None) for line in lines]
    texts = ("–" if each is None else f"{each:.3g} s" for each in newest)
    summary = _(
        "95 of 100 tasks started within %s with no task of their own tenant before them, "
        "and within %s behind tasks of their own tenant."
    ) % tuple(texts)
    return charts.times(lines, summary, _("an hour ago"), _("now"))


def hours(observed: Observed) -> SafeString:
    """Return the chart of the tasks that would have been rejected in each hour of the last day."""
    values = [each.over_limit for each in observed.hours]
    summary = _(
        "%(all)s tasks of the last %(hours)s hours started above the limit of their tier, "
        "at most %(most)s in one hour."
    ) % {"all": f"{sum(values):,}", "hours": len(values), "most": f"{max(values):,}"}
    return charts.counts(values, summary, _("a day ago"), _("now"))


def _p95(minute: Minute, kind: str) -> float | None:
    """Return the wait below which 95 of 100 tasks of a minute started, in seconds."""
    counts: dict[float, int] = {}
    for row in minute.counts:
        found: Sequence[WaitCount] = getattr(row, kind)
        for each in found:
            counts[each.below_seconds] = counts.get(each.below_seconds, 0) + each.tasks
    left = 0.95 * sum(counts.values())
    for below, tasks in sorted(counts.items()):
        left -= tasks
        if left <= 0:
            return below
    return None
