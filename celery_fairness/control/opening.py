"""The time until the rates of a limit allow a start, by the rules of the next claim."""

from __future__ import annotations

from math import ceil

from celery_fairness.config.limit_spec import Limit
from celery_fairness.control.scan import Reader, logical_now


def starts_wait_seconds(reader: Reader, limit: Limit, before: int = 0) -> float:
    """Return the seconds until the rates and the throttle of a limit allow a start; 0 is now.

    Tasks that go ``before`` are expected to start as soon as they may.
    """
    keys = reader.keys
    count, ideal = reader.read("HMGET", keys.of("window", limit.key), "count", "ideal")
    waits_ms, logical = [0.0], logical_now(reader)
    for starts, period_ms in limit.rates:
        # A window allows a start when the start that is ``starts`` places earlier has left it. That
        # may be a task that goes before and has not started yet, so count whole periods (rounds)
        # until it is one that has.
        number = int(count or 0) + before + 1 - starts
        rounds = max(0, ceil((before + 1 - starts) / starts))
        number -= rounds * starts
        if number < 1:
            waits_ms.append(rounds * period_ms)
            continue
        found = reader.read(
            *("ZRANGEBYSCORE", keys.of("starts", limit.key), number, "+inf", "LIMIT", 0, 1)
        )
        waits_ms += [
            int(each.split(" ")[1]) + (rounds + 1) * period_ms + 1 - logical for each in found
        ]
    if limit.throttle:
        interval = limit.throttle[1] / limit.throttle[0]
        due = logical if ideal is None else float(ideal) + interval
        waits_ms.append(due + before * interval - logical)
    return max(waits_ms) / 1000
