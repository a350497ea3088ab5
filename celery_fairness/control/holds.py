"""Reads the holds of keys: pauses, cool-downs and overrides.

:mod:`.holding` writes them. The clocks by which they end are read here too, for all of ``control``.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from celery_fairness.config.limit_spec import Limit, read_limits
from celery_fairness.config.rates import Rate
from celery_fairness.control.ojs_views import at_ms
from celery_fairness.control.scan import Reader, batches
from celery_fairness.limiter.types import KeyOverride, KeyStops, LimitState
from celery_fairness.scheduler.calls import Stopped, read_paused_by
from celery_fairness.scheduler.overrides import UNCHANGED
from celery_fairness.util.durations import Milliseconds, seconds


def with_holds(reader: Reader, state: LimitState, of_all: str = "") -> LimitState:
    """Return ``state`` with the holds and the override of its key.

    Args:
        reader: The reader of the installation.
        state: The state of a key, with its own limit.
        of_all: Key of the whole tenant, if the state's key is of one of its services.
    """
    keys = reader.keys
    names = [name for name in (state.key, of_all) if name]
    cooled, row, *pauses = reader.together(
        [
            ("ZSCORE", keys.cooled, state.key),
            ("HGET", keys.overrides, state.key),
            *(("SISMEMBER", keys.paused, name) for name in names),
            *(("ZSCORE", keys.paused_until, name) for name in names),
            *(("HGET", keys.paused_by, name) for name in names),
        ]
    )
    now_ms = server_now(reader)
    cool_ms = max(0.0, float(cooled) - logical_now(reader)) if cooled else 0.0
    of_names = zip(names, *batches(pauses, len(names)), strict=True)
    # The service and the whole tenant may both be paused. The pause that ends last counts.
    stops = max(
        (
            stops_of(
                state.key,
                Stopped(
                    Milliseconds(int(cool_ms)),
                    None if for_ever else Milliseconds(max(0, int(float(until or 0)) - now_ms)),
                    now_ms,
                    *read_paused_by(by or ""),
                ),
                pause_of="" if name == state.key else name,
            )
            for name, for_ever, until, by in of_names
        ),
        key=lambda each: (each.paused, each.pause_seconds or math.inf),
    )
    override = read_override_row(state.key, row, now_ms) if row else None
    limit = state.limit
    if override is not None:
        limit = override.numbers.get("concurrency", limit)
    # A tenant's record has the name of the key of the whole tenant.
    own = reader.read("HGET", keys.prefix + names[-1], "concurrency") if state.tier else None
    return replace(
        state,
        limit=0 if stops.paused else limit,
        stops=stops,
        override=override,
        own_number=bool(own),
        entitled=state.limit,
    )


def stops_of(key: str, stopped: Stopped, pause_of: str = "") -> KeyStops:
    """Return the pause and the cool-down of a key.

    Args:
        key: The key.
        stopped: The answer of the function library.
        pause_of: The paused key, if it is another one.
    """
    cool_ms, pause_ms, now_ms, since_ms, by = stopped
    paused = pause_ms != 0
    return KeyStops(
        key=key,
        paused=paused,
        cool_down_seconds=seconds(cool_ms),
        pause_seconds=seconds(pause_ms) if pause_ms else None,
        paused_until=at_ms(now_ms + pause_ms) if pause_ms else None,
        paused_since=at_ms(since_ms) if paused and since_ms is not None else None,
        paused_by=by if paused else "",
        pause_of=pause_of if paused else "",
        cools_until=at_ms(now_ms + cool_ms) if cool_ms else None,
    )


def read_override_row(key: str, row: str, now_ms: int) -> KeyOverride | None:
    """Read an override in its form in Redis; None if it has ended."""
    text, _, details = row.partition(" ")
    numbers, _, ends = text.rpartition("|")
    if ends and int(ends) <= now_ms:
        return None
    values: dict[str, Any] = {}
    for name, word in zip(("concurrency", "rate", "throttle"), numbers.split("|"), strict=True):
        if word == UNCHANGED:
            continue
        if name == "concurrency":
            values[name] = int(word) if word else None
        else:
            rates = read_limits(f"{key}||{word}||w")[0].rates
            values[name] = Rate(rates[0][0], seconds(rates[0][1])).to_ojs() if rates else None
    notes = json.loads(details) if details else {}
    expires_at = seconds(int(ends)) if ends else None
    return KeyOverride(key, values, expires_at, notes.get("reason"), notes.get("author"))


def judged_by(limit: Limit, override: KeyOverride) -> Limit:
    """Return a limit with the numbers of an override."""
    given = override.numbers
    windows = {name: Rate.from_ojs(given[name]) for name in ("rate", "throttle") if given.get(name)}
    pairs = {name: (rate.limit, int(rate.period_ms)) for name, rate in windows.items()}
    if "concurrency" in given:
        limit = limit._replace(concurrency=given["concurrency"])
    if "rate" in given:
        limit = limit._replace(rates=(pairs["rate"],) if "rate" in pairs else ())
    if "throttle" in given:
        limit = limit._replace(throttle=pairs.get("throttle"))
    return limit


def server_now(reader: Reader) -> int:
    """Return the server's time in ms."""
    answer = reader.read("TIME")
    # A cluster answers for each of its nodes.
    now, micros = next(iter(answer.values())) if isinstance(answer, dict) else answer
    return int(now) * 1000 + int(micros) // 1000


def logical_now(reader: Reader) -> float:
    """Return the logical time in ms that the next call will have; 0 if there is none yet."""
    logical, seen = reader.read("HMGET", reader.keys.clock, "logical", "seen")
    if not (logical and seen):
        return 0.0
    # No function has moved the clock since then.
    return float(logical) + max(0, server_now(reader) - int(seen))
