"""``fairness.limits``: what a key holds, and what an operator changes of it for a time."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from celery_fairness.config.fields import whole
from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import server_now
from celery_fairness.control.key.inspector import Inspector, typed_key
from celery_fairness.control.key.queue_keys import QueueKeys, find_key
from celery_fairness.control.key.stops import Stops, ends_ms, lasts_ms, person
from celery_fairness.control.key.views import (
    ChangedHolds,
    Inspection,
    InspectionPage,
    ReportedLimit,
)
from celery_fairness.errors import LimiterUnavailable, NotFound, TenantInvalid, got
from celery_fairness.limiter.current_lease import current_lease
from celery_fairness.limiter.types import Counted
from celery_fairness.util.rate_headers import read_headers
from celery_fairness.util.retry_after import wait_after, wait_until

#: As the Open Job Spec's routes have them (10.3).
PAGE_LENGTH, LONGEST_PAGE = 20, 100
#: The numbers of pages.
PAGES = whole(1, 1_000_000)
#: The units that a body may report.
USED = whole(0, 1_000_000_000)

logger = logging.getLogger("celery_fairness")


class LimitsApi:
    """Limits by key: ``api.stripe.com``, ``tenant:42``, ``queue:mail``.

    Every method raises ``LimiterUnavailable`` if Redis does not answer, and ``TenantInvalid`` if
    the tenant in a key cannot be one.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._inspector = Inspector(installation)
        self._stops = Stops(installation)
        self._queues = QueueKeys(installation)

    def list(self, page: int = 1, per_page: int = PAGE_LENGTH) -> InspectionPage:
        """Return the known keys by name, those of tenants among them.

        ``model_dump(mode="json")`` is the object of the Open Job Spec: ``items``, each as
        :meth:`inspect` returns it, and ``pagination``.

        If more than 1,000 keys are known, their names are read at most once in some seconds: the
        longer that takes, the less often. So a page of a large installation may lack a new key.

        Args:
            page: The number of the page, from 1.
            per_page: How many keys a page has, 1 to 100.

        Raises:
            ValueError: A number is out of range.
        """
        PAGES.read("page", page)
        whole(1, LONGEST_PAGE).read("per_page", per_page)
        return self._inspector.page(page, per_page)

    def inspect(self, key: str, page: int = 1) -> Inspection:
        """Return what a key holds and may hold now, in the form of the Open Job Spec.

        ``model_dump(mode="json")`` is its object: ``key``, ``concurrency``, ``rate``, ``throttle``,
        ``waiting_count`` and ``override``. Other facts, such as ``leases``, are attributes only.

        A tenant's key always answers, because each tenant has a tier. If the tenant was never seen,
        the answer is not ``known``. Another key answers while Redis stores anything about it, or if
        a task or the setting ``queues`` of this app declares it.

        Args:
            key: The key of a limit, such as ``api.stripe.com``. That of a queue is
                ``queue:{queue}``. That of a tenant is ``tenant:{tenant}``, or
                ``tenant:{tenant}:{service}`` if the setting ``tier_scope`` is ``service``.
            page: The number of the page of ``leases``, and of the limits in ``waited``, from 1. A
                page has at most a hundred of each.

        Raises:
            NotFound: Nothing is known of the key.
            ValueError: The key has another form, or the page is out of range.
        """
        PAGES.read("page", page)
        try:
            return self._inspector.inspect(key, page)
        except NotFound:
            queue = self._queues.queue_of(key) if key.startswith(PREFIX) else ""
            if not queue or queue_key(queue) == key:
                raise
            # The queue has a colon in its name, so its key is a hash.
            return self._inspector.inspect(queue_key(queue), page)

    def is_known(self, key: str) -> bool:
        """Return whether anything is known of a key; False also if the key has no valid form."""
        try:
            return self.inspect(key).known
        except NotFound:
            return key.startswith(PREFIX) and self._queues.queue_of(key) != ""
        except (TenantInvalid, ValueError):
            return False

    def pause(
        self,
        key: str,
        *,
        for_seconds: float | None = None,
        until: datetime | float | None = None,
        by: str | None = None,
    ) -> ChangedHolds:
        """Start nothing more under a key; running tasks go on.

        Without ``for_seconds`` and ``until`` the pause lasts until :meth:`resume`. A later pause
        replaces this one.

        Args:
            key: As for :meth:`inspect`.
            for_seconds: How long, in seconds.
            until: The end: a datetime with a time zone, or Unix seconds.
            by: The person who pauses it, at most 200 characters; None: the user of this process.

        Returns:
            What stops the key now. ``known`` is False if nothing was known of it: a key can be
            paused before its first task.

        Raises:
            ValueError: The key, the time or the person is invalid.
        """
        wait_ms = lasts_ms(self._installation.reader, for_seconds, until)
        who = person(by)
        name, known = self._changed(key)
        return self._stops.stop("pause", name, wait_ms, by=who, known=known)

    def resume(self, key: str, *, by: str | None = None) -> ChangedHolds:
        """End a pause; a cool-down goes on. Arguments and errors as for :meth:`pause`."""
        who = person(by)
        name, known = find_key(self._installation, key)[0], self.is_known(key)
        return self._stops.stop("resume", name, by=who, known=known)

    def cool_down(
        self,
        key: str,
        *,
        for_seconds: float | None = None,
        until: datetime | float | None = None,
        reason: str = "",
    ) -> ChangedHolds:
        """Start nothing under a key for a time, for example while a service rejects calls.

        A later call can make the time longer and never shorter. A time that is naive, past or more
        than a day ahead becomes one second or one day from now, and a warning is logged.

        Args:
            key: The key of a limit that tasks declare, such as ``api.stripe.com``. A tenant's key
                does not cool down.
            for_seconds: How long, in seconds; or
            until: The end: a datetime with a time zone, or Unix seconds.
            reason: For the log and the event.

        Raises:
            ValueError: As :meth:`pause`.
        """
        if (for_seconds is None) == (until is None):
            both = "none" if until is None else "both"
            raise ValueError(f"expected for_seconds or until, got: {both}")
        if until is None:
            wait_seconds = wait_after(for_seconds)
        else:
            wait_seconds = wait_until(until, server_now(self._installation.reader) / 1000)
        name, known = self._changed(key, tenants=False)
        return self._stops.cool_down(name, wait_seconds, reason, known)

    def report(self, key: str, headers: Any) -> ReportedLimit:
        """Store what the headers of an answer say about the limit of an API.

        ``Retry-After`` lets the key cool down. ``RateLimit`` of the IETF, or
        ``X-RateLimit-Remaining`` with ``X-RateLimit-Reset``, say how many more requests are free
        until a time. After so many more starts the key cools down until then. A later report of the
        same window can only lower the number, and a report of a later window replaces it.

        A report only delays starts: the numbers of the key hold beside it. It takes one call of
        Redis, and none if the headers say nothing. Call it in the body of each task that calls the
        API.

        Args:
            key: The key of a limit that tasks declare, such as ``api.stripe.com``.
            headers: A mapping such as ``response.headers`` of requests or httpx, or pairs of name
                and value.

        Returns:
            How long the key cools down, and how many starts are free.

        Raises:
            TypeError: ``headers`` is neither.
            ValueError: The key is invalid, or a tenant's.
        """
        name, *_ = typed_key(key, self._installation.settings, tenants=False)
        reported = read_headers(headers)
        if reported.retry_seconds is None and reported.remaining is None:
            return ReportedLimit(key=name, is_read=False)
        return self._stops.report(name, reported)

    def clear_cool_down(self, key: str) -> ChangedHolds:
        """End a cool-down; a pause of the key goes on. Errors as for :meth:`pause`."""
        cools = isinstance(key, str) and self._stops.cools(key)
        name = key if cools else find_key(self._installation, key, tenants=False)[0]
        return self._stops.stop("clear", name, known=self.is_known(key))

    def override(
        self,
        key: str,
        *,
        for_seconds: float | None = None,
        until: datetime | float | None = None,
        reason: str | None = None,
        by: str | None = None,
        **numbers: Any,
    ) -> Inspection:
        """Replace the numbers of a key, for a time or until they are cleared.

        The numbers hold from the next claim on, for each task of the key. A number that is not
        given stays as the tasks declare it. A later override replaces this one.

        Args:
            key: As for :meth:`inspect`. A pattern such as ``api.*`` holds for each key that begins
                so, and each has the numbers for itself. The override of a key itself goes before
                that of a pattern, and a longer pattern before a shorter one. ``*`` holds for limits
                whose tasks bring no number.
            numbers: ``concurrency``, ``rate`` and ``throttle``, as in
                :class:`~celery_fairness.RateLimitPolicy`. None is unlimited, and concurrency 0
                pauses. Running tasks above it go on, and nothing starts until fewer run.
            for_seconds: How long, in seconds; or
            until: The end: a datetime with a time zone, or Unix seconds.
            reason: Why, for operators.
            by: The person who sets it.

        Returns:
            The key as :meth:`inspect` returns it from now on.

        Raises:
            PolicyInvalid: A number is invalid.
            ValueError: No number is given, or the key or the time is invalid.
        """
        if for_seconds is not None and until is not None:
            raise ValueError("expected for_seconds or until, got: both")
        details = {"reason": reason, "by": by}
        name, _ = self._changed(key, of_all=False, patterns=True)
        self._stops.override(
            name,
            numbers,
            lasts_ms(self._installation.reader, for_seconds),
            None if until is None else ends_ms(until),
            {name: text for name, text in details.items() if text is not None},
        )
        # The override may have ended since.
        return self._inspector.inspect(name if name.startswith(PREFIX) else key, known=False)

    def clear_override(self, key: str) -> bool:
        """End an override; return whether there was one. Errors as for :meth:`override`."""
        return self._stops.clear(find_key(self._installation, key, patterns=True)[0])

    def used(self, key: str, units: int) -> bool:
        """Report how many units of a rate the running task has used, in place of its estimate.

        Call it in the body, in the thread or greenlet that runs the body. The start of the task
        then counts ``units``, and not the ``units`` of its policy. Fewer are free for other tasks
        at once. More may take the rate above its number, and later tasks wait until they have left
        the window. A later report replaces this one. A task that dies keeps its last number.

        A call that the body waits for should not fail for a report. So if Redis does not answer,
        a warning is logged, and the start keeps its number.

        Args:
            key: The key of a limit of the task, such as ``openai:tokens``.
            units: What it has used until now, 0 to 1,000,000,000.

        Returns:
            Whether the start was corrected. False outside of a worker, for example in a test that
            calls the body, and if the lease of the task has ended.

        Raises:
            ValueError: The task has no limit of this key, or the number is out of range.
        """
        USED.read("units", units)
        lease = current_lease()
        if not lease:
            return False
        try:
            counted = self._installation.limiter.used(lease, key, units)
        except LimiterUnavailable as error:
            logger.warning("the use of %d units of %s is not counted: %s", units, key, error)
            return False
        if counted is Counted.OTHER_KEY:
            raise ValueError(f"key: expected that of a limit of the running task, got: {got(key)}")
        return counted is Counted.COUNTED

    def _changed(
        self, key: Any, *, tenants: bool = True, of_all: bool = True, patterns: bool = False
    ) -> tuple[str, bool]:
        """Return a key that is about to change, as Redis stores it, and whether it was known.

        If it is a queue's key, claims look at it from now on. Arguments as for
        :func:`~celery_fairness.control.key.queue_keys.find_key`.
        """
        name, queue = find_key(
            self._installation, key, tenants=tenants, of_all=of_all, patterns=patterns
        )
        known = self.is_known(key)
        if queue:
            self._queues.make_known(queue)
        return name, known
