"""How long the starts of a key keep a limit closed: as the next claim judges it."""

from __future__ import annotations

from math import ceil

from celery_fairness.config.limit_spec import Limit
from celery_fairness.control.holds import logical_now
from celery_fairness.control.scan import Reader


def starts_wait_seconds(reader: Reader, limit: Limit, before: int = 0) -> float:
    """Return how long its rates and its throttle keep a limit closed, in seconds; 0: not.

    Where others go before, each of which starts as soon as it may, how long they keep the next.
    """
    keys = reader.keys
    count, ideal = reader.read("HMGET", keys.of("window", limit.key), "count", "ideal")
    waits_ms, logical = [0.0], logical_now(reader)
    for starts, period_ms in limit.rates:
        # It starts when the one before it by so many starts has left the window; that may be one of
        # those that go before it, which starts when another has, and so on.
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
