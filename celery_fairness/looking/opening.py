"""How long the starts of a key keep a limit closed: as the next claim judges it."""

from __future__ import annotations

from celery_fairness.looking.reading import Reader
from celery_fairness.looking.steered import logical_now
from celery_fairness.scheduling.limits import Limit


def starts_wait_seconds(reader: Reader, limit: Limit) -> float:
    """Return how long its rates and its throttle keep a limit closed, in seconds; 0: not."""
    keys = reader.keys
    count, ideal = reader.read("HMGET", keys.of("window", limit.key), "count", "ideal")
    if count is None:
        return 0.0
    waits_ms, logical = [0.0], logical_now(reader)
    for starts, period_ms in limit.rates:
        if int(count) >= starts:
            after = f"({int(count) - starts}"
            found = reader.read(
                *("ZRANGEBYSCORE", keys.of("starts", limit.key), after, "+inf", "LIMIT", 0, 1)
            )
            waits_ms += [int(each.split(" ")[1]) + period_ms + 1 - logical for each in found]
    if limit.throttle:
        waits_ms.append(float(ideal) + limit.throttle[1] / limit.throttle[0] - logical)
    return max(waits_ms) / 1000
