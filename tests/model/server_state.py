"""The whole state of the scheduler in Redis, in the form of ``tests.model.state``.

Invariant: every key under the prefix is read or named here; one that is not known is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from redis import Redis

from celery_fairness.config.limit_spec import shape_of
from celery_fairness.control.event_types import KEPT_APART, TYPES
from celery_fairness.scheduler.calls import read_paused_by

#: Every key with its type and all that it holds, in one call.
_READ_ALL = """
local found = {}
for _, key in ipairs(redis.call("KEYS", ARGV[1] .. "*")) do
  local kind = redis.call("TYPE", key)["ok"]
  local value
  if kind == "hash" then value = redis.call("HGETALL", key)
  elseif kind == "zset" then value = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
  elseif kind == "list" then value = redis.call("LRANGE", key, 0, -1)
  elseif kind == "stream" then value = redis.call("XRANGE", key, "-", "+")
  elseif kind == "set" then value = redis.call("SMEMBERS", key)
  else value = {redis.call("GET", key)} end
  found[#found + 1] = {string.sub(key, #ARGV[1] + 1), value}
end
return found
"""

_RECORD = re.compile(
    r"(\d+) (\S+) (\d+) (\d+) (\S+) (\d) (\S*) (\S*) (\S*) (\S*)"
    r" (\S*) (?:(\d+)(\+)?)? (\S*)\n(.*)",
    re.DOTALL,
)
_RUNNING = re.compile(r"(\S+) ([a-z]+)(?:@(\d+)(?:~(\d+))?)? (\d+) (.*)", re.DOTALL)


def record(text: str) -> tuple[Any, ...]:
    seq, tag, attempt, deaths, cost, rank, *words = _RECORD.fullmatch(text).groups()
    *words, put_ms, noisy, blocked, message = words
    words = [word or "" for word in words]
    put = None if put_ms is None else int(put_ms), bool(noisy)
    numbers = int(attempt), int(deaths), float(cost), int(rank)
    return (int(seq), tag, *numbers, *words, message, blocked or "", *put)


def running(text: str) -> tuple[Any, ...]:
    owner, state, since, mean, length, rest = _RUNNING.fullmatch(text).groups()
    raw = rest.encode()
    queue = raw[: int(length)].decode()
    told = [None if each is None else int(each) for each in (since, mean)]
    return owner, state, queue, record(raw[int(length) :].decode()), *told


def _charged(text: str) -> tuple[Any, ...]:
    estimate, weight, since, finish, queue = text.split(" ", 4)
    return float(estimate), float(weight), int(since), float(finish), queue


def keys_of(client: Redis, prefix: str) -> dict[str, Any]:
    return dict(client.eval(_READ_ALL, 0, prefix))


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _scores(flat: list[str]) -> dict[str, float]:
    return {name: float(score) for name, score in _pairs(flat).items()}


def _event(flat: list[str]) -> tuple[str, dict[str, str]]:
    fields = _pairs(flat)
    return fields.pop("type"), fields


def _ring() -> dict[str, Any]:
    return {"virtual": 0.0, "members": {}, "full": {}, "out": {}, "bell": False, "left": False}


def read(client: Redis, prefix: str) -> dict[str, Any]:
    """Return the state; what is kept twice is compared here, and only told once."""
    keys = keys_of(client, prefix)
    state: dict[str, Any] = {
        "clock": None,
        "version": 0,
        "sequence": int(keys.pop("sequence", ["0"])[0]),
        "known": sorted(keys.pop("known", [])),
        "lanes": {},
        "later": {},
        "expires": {},
        "accounts": {},
        "closed": {k: int(v) for k, v in _scores(keys.pop("closed", [])).items()},
        "running": {k: running(v) for k, v in _pairs(keys.pop("running", [])).items()},
        "ends": _scores(keys.pop("ends", [])),
        "charged": {k: _charged(v) for k, v in _pairs(keys.pop("charged", [])).items()},
        "leases": {},
        "exceeded": {k: int(v) for k, v in _pairs(keys.pop("exceeded", [])).items()},
        "minutes": {},
        "unranked": {},
        "rings": defaultdict(_ring),
        "replies": {},
        "dead": {},
        "outcomes": {running(k): int(v) for k, v in _scores(keys.pop("outcomes", [])).items()},
        "events": _events(keys),
        "task_events": [_event(fields) for _, fields in keys.pop("task_events", [])],
        "counts": {k: int(v) for k, v in _pairs(keys.pop("counts", [])).items()},
    }
    if "logical" in (clock := _pairs(keys.pop("clock", []))):
        times = (int(clock[name]) for name in ("logical", "seen", "epoch"))
        state["clock"] = (*times, clock["server"])
    state["ranked"] = "ranked" in clock
    means = (each.split("~") for each in clock.get("took", "").split())
    state["took"] = [(kind, int(mean)) for kind, mean in means]
    state["watched"] = int(clock.get("watched", 0))
    said = ("paused", "paused_until", "overrides")
    assert ("steered" in clock) == any(name in keys for name in said)
    news = _pairs(keys.pop("news", []))
    state["version"] = int(news.get("version", 0))
    state["queues_version"] = int(news.get("queues", 0))
    state["queues"] = _pairs(keys.pop("queue_limits", []))
    assert ("queued" in clock) == bool(state["queues"])
    owners = {row.split(" ")[0]: queue for queue, row in state["queues"].items()}
    assert _pairs(keys.pop("queue_keys", [])) == owners
    keys.pop("tiers", None)
    waiting = {k: int(v) for k, v in _pairs(keys.pop("waiting", [])).items()}
    virtual = _scores(keys.pop("virtual", []))
    returned = _pairs(keys.pop("returned", []))
    ready, counted = {}, {}
    ranks: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    _limits(keys, state)
    for key, value in keys.items():
        kind, _, name = key.partition(":")
        if kind == "lane":
            state["lanes"][key] = [record(each) for each in value]
        elif kind == "back":
            tasks = {tag: record(returned.pop(tag)) for tag in _scores(value)}
            assert [float(t[0]) for t in tasks.values()] == list(_scores(value).values())
            assert [t[1] for t in tasks.values()] == list(tasks)
            state["lanes"][key] = list(tasks.values())
        elif kind == "ready":
            ready[name] = _scores(value)
        elif kind == "later":
            members = _scores(value).items()
            assert all(text[:16] == f"{record(text[17:])[0]:016d}" for text, _ in members)
            state["later"][name] = [(int(eta), record(text[17:])) for text, eta in members]
        elif kind == "account":
            fields = _pairs(value)
            closed = fields.pop("closed", "0") == "1"
            mean = fields.pop("mean", None)
            said = fields.pop("tier"), fields.pop("tenant"), closed
            state["accounts"][name] = (*said, None if mean is None else float(mean))
            assert all(field.startswith("q:") for field in fields), fields
            counted[name] = {field[2:]: int(count) for field, count in fields.items()}
        elif kind == "leases":
            state["leases"][name] = _scores(value)
        elif kind in ("ring", "full", "out"):
            field = "members" if kind == "ring" else kind
            state["rings"][name][field] = _scores(value)
        elif kind == "unranked":
            state["unranked"][name] = _scores(value)
        elif kind in ("ranked", "rank"):
            ranks[kind][name] = _scores(value)
        elif kind in ("bell", "left"):
            assert value == ["1"], value
            state["rings"][name][kind] = True
        elif kind == "expires":
            state["expires"][name] = _scores(value)
        elif kind == "reply":
            number, *leases = value[0].split()
            state["replies"][name] = (int(number), leases)
        elif kind == "minute":
            state["minutes"][int(name)] = {f: int(n) for f, n in _pairs(value).items()}
        elif kind == "dead":
            state["dead"][name] = [record(each) for each in value]
        else:
            assert kind == "tenant", f"an unknown key: {key}"
    for queue, start in virtual.items():
        state["rings"][queue]["virtual"] = start
    assert not returned, f"tasks that came back to no lane: {returned}"
    _check_what_is_kept_twice(state["lanes"], counted, waiting)
    state["ready"] = ready
    _check_ranks(state, ranks)
    state["rings"] = {q: r for q, r in state["rings"].items() if any(r.values())}
    return state


def _events(keys: dict[str, Any]) -> list[Any]:
    """Read what happened; some of it is in another stream too, with its id."""
    events = keys.pop("events", [])
    for kept in KEPT_APART:
        others = [each for each in events if TYPES[_event(each[1])[0]].kept == kept]
        assert keys.pop(f"{kept}_events", []) == others
    return [_event(fields) for _, fields in events]


def _check_ranks(state: dict[str, Any], ranks: dict[str, dict[str, Any]]) -> None:
    """Each member of a ring stands by its first ready task, but who is still to be looked at."""
    by_rank: dict[str, dict[str, float]] = {}
    for queue, ring in state["rings"].items() if state["ranked"] else ():
        for key, start in ring["members"].items():
            # What a part stands by begins with the rank.
            first = min((at, part) for part, at in state["ready"][f"{key} {queue}"].items())[1]
            known = ranks["ranked"].get(queue, {}).pop(key, None)
            if known is None and key in state["unranked"].get(queue, ()):
                continue
            assert known == float(first[0]), (queue, key, known, first)
            by_rank.setdefault(f"{first[0]} {queue}", {})[key] = start
    assert not any(ranks["ranked"].values()), ranks
    assert ranks["rank"] == by_rank, (ranks, by_rank)


def _limits(keys: dict[str, Any], state: dict[str, Any]) -> None:
    """Read what limits are, and take it out of ``keys``."""
    state["opens"] = _scores(keys.pop("opens", []))
    state["idle"] = _scores(keys.pop("idle", []))
    state["cooled"] = _scores(keys.pop("cooled", []))
    state["paused"] = set(keys.pop("paused", []))
    state["paused_until"] = _scores(keys.pop("paused_until", []))
    state["paused_by"] = {
        k: read_paused_by(v) for k, v in _pairs(keys.pop("paused_by", [])).items()
    }
    state["overrides"] = _overrides(keys)
    state["declared"] = {
        key.partition(":")[2]: keys.pop(key)[0] for key in list(keys) if key.startswith("declared:")
    }
    state["looks"] = {k: int(v) for k, v in _pairs(keys.pop("looks", [])).items()}
    shared = _scores(keys.pop("shared", []))
    for table in ("waited", "candidates", "groups", "group", "wait", "shelf", "parked", "windows"):
        state[table] = {}
    _paces(keys, state)
    kinds: dict[str, set[str]] = {}
    tags: dict[str, Any] = {}
    starts: dict[str, Any] = {}
    for key in list(keys):
        kind, _, name = key.partition(":")
        if kind == "waited":
            state[kind][name] = keys.pop(key)
        elif kind in ("candidates", "group", "wait", "shelf"):
            state[kind][name] = _scores(keys.pop(key))
        elif kind == "groups":
            state[kind][name] = _pairs(keys.pop(key))
        elif kind == "parked":
            state[kind][name] = {
                lane: _group(name, lane, alone) for lane, alone in _scores(keys.pop(key)).items()
            }
        elif kind == "kinds":
            kinds[name] = set(keys.pop(key))
        elif kind == "tags":
            tags[name] = _scores(keys.pop(key))
        elif kind == "starts":
            starts[name] = {
                int(n): int(each.split()[1]) for each, n in _scores(keys.pop(key)).items()
            }
        elif kind == "window":
            found = _pairs(keys.pop(key))
            numbers = (float(found[f]) for f in ("count", "ideal", "most", "kept"))
            state["windows"][name] = (*numbers, found["asked"])
    state["times"] = {name: (at, tags.pop(name, {})) for name, at in shared.items()}
    assert not tags
    state["windows"] = {
        name: (*window, starts.pop(name)) for name, window in state["windows"].items()
    }
    assert not starts
    came_back: defaultdict[str, set[str]] = defaultdict(set)
    for key in keys:
        family, _, name = key.partition(":")
        if family == "back":
            tenant, lane, kind, queue = name.split(" ", 3)
            if "," in lane:
                came_back[f"{tenant} {lane} {queue}"].add(kind)
    assert kinds == came_back


def _paces(keys: dict[str, Any], state: dict[str, Any]) -> None:
    """Read what keys know whose limits put tasks back."""
    state["began"], state["paces"], state["put_back"] = {}, {}, {}
    for key in list(keys):
        kind, _, name = key.partition(":")
        if kind == "began":
            state["began"][name] = _scores(keys.pop(key))
        elif kind == "rescheduled":
            state["put_back"][name] = _scores(keys.pop(key))
        elif kind == "pace":
            found = _pairs(keys.pop(key))
            mean = found.get("mean")
            state["paces"][name] = (
                None if mean is None else float(mean),
                float(found.get("next", "0")),
            )


def _overrides(keys: dict[str, Any]) -> dict[str, tuple[str, int | None]]:
    rows, ends = _pairs(keys.pop("overrides", [])), _scores(keys.pop("overrides_end", []))
    found = {}
    for key, row in rows.items():
        numbers, _, end = row.split(" ")[0].rpartition("|")
        found[key] = numbers, int(end) if end else None
    assert ends == {key: end for key, (_, end) in found.items() if end is not None}
    return found


def _group(name: str, lane: str, alone: float) -> str:
    lane = shape_of(lane)
    if alone:
        return f"{name.partition(' ')[0]} {lane}"
    return ",".join(word for word in lane[2:].split(",") if not word.endswith("p"))


def _check_what_is_kept_twice(
    lanes: dict[str, list[Any]],
    counted: dict[str, dict[str, int]],
    waiting: dict[str, int],
) -> None:
    of_tenant: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    of_queue: defaultdict[str, int] = defaultdict(int)
    for lane, tasks in lanes.items():
        kind, _, name = lane.partition(":")
        key, _, rest = name.split(" ", 2)
        of_kind, queue = rest.split(" ", 1) if kind == "back" else ("", rest)
        of_tenant[key][queue] += len(tasks)
        of_queue[queue] += len(tasks)
        if kind == "back":
            assert all(task[9] == of_kind for task in tasks), (lane, tasks)
    assert counted == {key: dict(queues) for key, queues in of_tenant.items()}
    assert waiting == dict(of_queue)
