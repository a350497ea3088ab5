"""What people have said of a key: pauses, cool-downs and overrides."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from celery_fairness.decision import KeyOverride, KeyStops, LimitState
from celery_fairness.looking.reading import Reader
from celery_fairness.rates import Rate
from celery_fairness.scheduling.limits import Limit, read_limits
from celery_fairness.scheduling.overrides import UNSAID
from celery_fairness.units import seconds


def with_steering(reader: Reader, state: LimitState, of_all: str = "") -> LimitState:
    """Return ``state`` with what people have said of its key.

    Args:
        reader: Of the dispatch path.
        state: Of a tenant its limit is the one that it would have else.
        of_all: Key of a tenant where this one is of one service of it.
    """
    keys = reader.keys
    names = [name for name in (state.key, of_all) if name]
    cooled, row, *pauses = reader.together(
        [
            ("ZSCORE", keys.cooled, state.key),
            ("HGET", keys.overrides, state.key),
            *(("SISMEMBER", keys.paused, name) for name in names),
            *(("ZSCORE", keys.paused_until, name) for name in names),
        ]
    )
    now_ms = server_now(reader)
    cool_ms = max(0.0, float(cooled) - logical_now(reader)) if cooled else 0.0
    for_ever, until = any(pauses[: len(names)]), pauses[len(names) :]
    pause_ms = max([0.0, *(float(end) - now_ms for end in until if end)])
    override = read_override(state.key, row, now_ms) if row else None
    stops = KeyStops(
        key=state.key,
        paused=for_ever or pause_ms > 0,
        cool_down_seconds=seconds(int(cool_ms)),
        pause_seconds=seconds(int(pause_ms)) if pause_ms and not for_ever else None,
    )
    limit = state.limit
    if override is not None:
        limit = override.numbers.get("concurrency", limit)
    return replace(state, limit=0 if stops.paused else limit, stops=stops, override=override)


def read_override(key: str, row: str, now_ms: int) -> KeyOverride | None:
    """Read an override as the scripts keep it; None where it has ended."""
    text, _, details = row.partition(" ")
    numbers, _, ends = text.rpartition("|")
    if ends and int(ends) <= now_ms:
        return None
    said: dict[str, Any] = {}
    for name, word in zip(("concurrency", "rate", "throttle"), numbers.split("|"), strict=True):
        if word == UNSAID:
            continue
        if name == "concurrency":
            said[name] = int(word) if word else None
        else:
            rates = read_limits(f"{key}||{word}||w")[0].rates
            said[name] = Rate(rates[0][0], seconds(rates[0][1])).to_ojs() if rates else None
    told = json.loads(details) if details else {}
    expires_at = seconds(int(ends)) if ends else None
    return KeyOverride(key, said, expires_at, told.get("reason"), told.get("author"))


def judged_by(limit: Limit, override: KeyOverride) -> Limit:
    """Return a limit with the numbers of an override."""
    said = override.numbers
    windows = {name: Rate.from_ojs(said[name]) for name in ("rate", "throttle") if said.get(name)}
    pairs = {name: (rate.limit, int(rate.period_ms)) for name, rate in windows.items()}
    if "concurrency" in said:
        limit = limit._replace(concurrency=said["concurrency"])
    if "rate" in said:
        limit = limit._replace(rates=(pairs["rate"],) if "rate" in pairs else ())
    if "throttle" in said:
        limit = limit._replace(throttle=pairs.get("throttle"))
    return limit


def server_now(reader: Reader) -> int:
    """Return the server's time in ms."""
    answer = reader.read("TIME")
    # A cluster answers for each of its nodes.
    now, micros = next(iter(answer.values())) if isinstance(answer, dict) else answer
    return int(now) * 1000 + int(micros) // 1000


def logical_now(reader: Reader) -> float:
    """Return the logical time in ms, as the next script will have it; 0 where there is none yet."""
    logical, seen = reader.read("HMGET", reader.keys.clock, "logical", "seen")
    if not (logical and seen):
        return 0.0
    # No script has moved the clock since then.
    return float(logical) + max(0, server_now(reader) - int(seen))
