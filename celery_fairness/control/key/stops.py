"""Writes the stops of keys (pauses and cool-downs) and their overrides, which end some time.

A key is either the key of a limit, such as ``api.stripe.com``, or a tenant's. A tenant's key is
``tenant:{tenant}``, or ``tenant:{tenant}:{service}`` with ``tier_scope="service"``.
"""

from __future__ import annotations

import getpass
import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from celery_fairness.config.numbers import numbers_of, read_given, write_numbers
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import Reader, server_now
from celery_fairness.control.key.limit_in_force import time_text
from celery_fairness.control.key.snapshot import key_holds_of
from celery_fairness.control.key.views import ChangedHolds, ReportedLimit
from celery_fairness.errors import got
from celery_fairness.scheduler import calls
from celery_fairness.util.durations import Milliseconds, milliseconds, seconds
from celery_fairness.util.log_fields import about
from celery_fairness.util.rate_headers import Reported
from celery_fairness.util.retry_after import MOST_SECONDS as COOL_SECONDS
from celery_fairness.util.timestamps import at_ms

logger = logging.getLogger("celery_fairness")

#: Shortest and longest duration of a stop or an override, in seconds: 1 ms and 366 days.
LEAST_SECONDS, MOST_SECONDS = 0.001, 366 * 86_400
#: The reason of a cool-down that a report demands.
REPORTED = "the API has reported its limit"
#: Times from here on are no times of an end. It is in the year 5138.
MAX_UNIX_SECONDS = 1e11
#: Longest reason in the admin and the HTTP API. An event cuts a longer one.
REASON_CHARACTERS = 500
#: Longest name of an operator.
PERSON_CHARACTERS = 200
_NUMBERS = numbers_of("override")


class Stops:
    """Pauses, cools down and overrides keys in one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    def stop(
        self,
        how: str,
        key: str,
        wait_ms: int = 0,
        reason: str = "",
        by: str = "",
        known: bool = True,
    ) -> ChangedHolds:
        """Pause, resume or cool down a key in its form in Redis; see ``calls.stop_args``."""
        why = reason[:REASON_CHARACTERS]
        since_ms, ends_ms = self._times(key, wait_ms) if how == "pause" else (None, None)
        times = {"since_ms": since_ms, "ends_ms": ends_ms}
        args = calls.stop_args(how, key, wait_ms, *self._rules, "", why, by, times)
        stopped = calls.read_stop(self._change(calls.STOP, key, args))
        holds = ChangedHolds(**dict(key_holds_of(key, stopped)), known=known)
        who = by or "somebody"
        if how == "pause":
            until = "it is resumed" if holds.paused_until is None else time_text(holds.paused_until)
            logger.info("%s is paused until %s, by %s", key, until, who, extra=about(key=key))
        elif how == "resume":
            logger.info("%s is resumed, by %s", key, who, extra=about(key=key))
        elif how == "clear":
            logger.info("the cool-down of %s is cleared", key, extra=about(key=key))
        return holds

    def cools(self, key: str) -> bool:
        """Return whether a key cools down, or has done so until lately."""
        its = self._installation.reader.parts_of_key(key)
        return any(each.read("ZSCORE", each.keys.cool_downs, key) is not None for each in its)

    def override(
        self,
        key: str,
        numbers: Mapping[str, Any],
        lasts_ms: int,
        ends_ms: int | None,
        details: Mapping[str, str],
    ) -> None:
        """Override the numbers of a key; see ``LimitsApi.override``.

        Raises:
            ValueError: There is no number, or the end is past.
            PolicyInvalid: A number is out of its bounds.
        """
        if not numbers:
            raise ValueError(f"override: expected any of {', '.join(_NUMBERS)}, got: none")
        text = override_text(numbers)
        notes = json.dumps(dict(details)) if details else ""
        if lasts_ms and (ends := self._times(key, lasts_ms)[1]) is not None:
            lasts_ms, ends_ms = 0, ends
        args = calls.override_args(key, text, lasts_ms, ends_ms, notes, *self._rules)
        if not calls.read_override(self._change(calls.OVERRIDE, key, args)):
            raise ValueError("until: expected a time to come, got: one that is past")

    def cool_down(
        self, key: str, wait_seconds: float, reason: str = "", known: bool = True
    ) -> ChangedHolds:
        """Let no task of a key start for a time, and log it. The key has its form in Redis."""
        holds = self.stop("cool", key, milliseconds(wait_seconds), reason, known=known)
        why = reason or "no reason given"
        logger.warning(
            "%s cools down for %.1f s: %s", key, holds.cool_down_seconds, why, extra=about(key=key)
        )
        return holds

    def report(self, key: str, reported: Reported) -> ReportedLimit:
        """Store what an API has reported, in one call; see ``LimitsApi.report``."""
        cool_ms = None
        if reported.retry_seconds is not None:
            cool_ms = milliseconds(min(max(reported.retry_seconds, 1.0), COOL_SECONDS))
        left_ms = milliseconds(max(reported.reset_seconds, 1.0))
        said = (cool_ms, reported.remaining, left_ms, self._installation.lease_ms)
        args = calls.report_args(key, *said, reason=REPORTED)
        answer = json.loads(self._change(calls.REPORT, key, args))
        cools, left = seconds(answer["cool_ms"]), answer.get("reported")
        if cool_ms is not None:
            logger.warning(
                "%s cools down for %.1f s: %s", key, cools, REPORTED, extra=about(key=key)
            )
        return ReportedLimit(
            key=key,
            is_read=True,
            cool_down_seconds=cools,
            left=left[0] if left else None,
            until=at_ms(left[1]) if left else None,
        )

    def clear(self, key: str) -> bool:
        """End an override; return whether there was one."""
        found = self._installation.limiter.look(key).get("override")
        # That of a pattern stays.
        had = found is not None and "pattern" not in found
        args = calls.override_args(key, "", 0, None, "", *self._rules)
        self._change(calls.OVERRIDE, key, args)
        return had

    def _change(self, function: str, key: str, args: Sequence[str]) -> Any:
        """Change a key in each partition that has tasks of it, and return the first answer.

        A key of several tenants changes in the home first. If this process dies then, a worker
        changes it in the partitions (:mod:`celery_fairness.control.key.shared_changes`).
        """
        reader = self._installation.reader
        its = reader.parts_of_key(key)
        if len(its) > 1:
            self._installation.limiter.meet_home()
            its = reader.stores
        first, *_ = [each.call(function, args) for each in its]
        return first

    def _times(self, key: str, wait_ms: int) -> tuple[int | None, int | None]:
        """Return begin and end of a change that several partitions have; None for any other."""
        reader = self._installation.reader
        if len(reader.parts_of_key(key)) == 1:
            return None, None
        now = server_now(reader)
        return now, now + wait_ms if wait_ms else None

    @property
    def _rules(self) -> tuple[int, str]:
        return self._installation.lease_ms, self._installation.settings.enforcement.value


def override_text(numbers: Mapping[str, Any]) -> str:
    """Return the numbers of an override as the text in Redis; None is unlimited.

    Raises:
        PolicyInvalid: A number is invalid, or its name is unknown, with one problem for each.
    """
    return write_numbers(read_given("override", numbers))


def person(by: Any) -> str:
    """Return ``by``, or the user of this process if it is None; "" if the user is unknown.

    Raises:
        ValueError: ``by`` is not a text of 1 to 200 characters.
    """
    if by is None:
        try:
            return getpass.getuser()
        except (KeyError, OSError):
            # A container may have neither a name for the user nor a variable with one.
            return ""
    if not isinstance(by, str) or not 1 <= len(by) <= PERSON_CHARACTERS:
        expected = f"a text of 1 to {PERSON_CHARACTERS} characters"
        raise ValueError(f"by: expected {expected}, got: {got(by)}")
    return by


def lasts_ms(
    reader: Reader, for_seconds: Any = None, until: Any = None, *, most: int = MOST_SECONDS
) -> Milliseconds:
    """Return a duration in ms by the server's clock; 0 is without an end, if neither is given.

    Raises:
        ValueError: Both are given, ``for_seconds`` is not a number from 0.001 to ``most``, or
            ``until`` is past or more than ``most`` seconds away.
    """
    if for_seconds is not None and until is not None:
        raise ValueError("expected for_seconds or until, got: both")
    if until is not None:
        left_ms = ends_ms(until) - server_now(reader)
        if not 0 < left_ms <= most * 1000:
            raise ValueError(f"until: expected a time to come, at most {most} seconds from now")
        return Milliseconds(left_ms)
    if for_seconds is None:
        return milliseconds(0)
    number = isinstance(for_seconds, (int, float)) and not isinstance(for_seconds, bool)
    if not number or not LEAST_SECONDS <= for_seconds <= most:
        expected = f"seconds from {LEAST_SECONDS} to {most}"
        raise ValueError(f"for_seconds: expected {expected}, got: {got(for_seconds)}")
    return milliseconds(for_seconds)


def ends_ms(until: Any) -> int:
    """Return a time as Unix milliseconds.

    Raises:
        ValueError: It is neither a datetime with a time zone nor Unix seconds.
    """
    if isinstance(until, datetime) and until.tzinfo is not None:
        until = until.timestamp()
    number = isinstance(until, (int, float)) and not isinstance(until, bool)
    if not number or not 0 <= until < MAX_UNIX_SECONDS:
        expected = "a datetime with a time zone or Unix seconds"
        raise ValueError(f"until: expected {expected}, got: {got(until)}")
    return milliseconds(until)
