"""The checks of the Redis server: version, role, memory, persistence, clock and latency.

A check finds nothing if the user of Redis may not read its facts. The check ``rights`` reports
that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from celery_fairness.control.health.doctor.facts import Facts
from celery_fairness.control.health.doctor.symptoms import Found, advice, problem

#: The oldest versions with the functions that the library uses.
OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
#: The oldest versions that can move a hash slot of a cluster as one.
MOVES_AT_ONCE = {"redis": (8, 4), "valkey": (9, 0)}
#: The parts of ``maxmemory`` in use above which memory is advice and a problem.
MEMORY_ADVICE, MEMORY_PROBLEM = 0.75, 0.9
#: Differences of two clocks that are advice and a problem, in seconds.
CLOCK_ADVICE_SECONDS, CLOCK_PROBLEM_SECONDS = 1.0, 10.0
#: Latencies that are advice and a problem, in seconds.
LATENCY_ADVICE_SECONDS, LATENCY_PROBLEM_SECONDS = 0.01, 0.1


def _info(facts: Facts) -> Mapping[str, str]:
    return (facts.server and facts.server.info) or {}


def _lost(facts: Facts) -> str:
    """Return what is lost with the server's memory, as a subject."""
    return "waiting tasks and leases" if facts.claims else "leases and parked tasks"


def library(facts: Facts) -> Iterator[Found]:
    """Find that the server cannot run the function library."""
    if facts.unusable:
        yield problem(
            facts.unusable,
            "no worker starts, and no task is limited",
            "follow the text; docs/how-to/connect-redis.md has the needed rights",
        )


def rights(facts: Facts) -> Iterator[Found]:
    """Find that the user of Redis may not run ``INFO``."""
    if facts.server is not None and facts.server.info is None:
        yield advice(
            "the user of Redis may not run INFO",
            "version, role, memory, eviction and persistence cannot be checked",
            "grant +info",
        )


def _older_than(facts: Facts, wanted: Mapping[str, tuple[int, int]]) -> tuple[str, str] | None:
    """Return the server's name with its version, and the wanted version, if it is older."""
    info = _info(facts)
    name = "valkey" if "valkey_version" in info else "redis"
    text = info.get(f"{name}_version", "")
    numbers = tuple(int(each) for each in text.split(".")[:2] if each.isdigit())
    if len(numbers) != 2 or numbers >= wanted[name]:
        return None
    return f"{name.capitalize()} {text}", ".".join(map(str, wanted[name]))


def version(facts: Facts) -> Iterator[Found]:
    """Find that Redis is older than 7.0, or Valkey older than 7.2."""
    if older := _older_than(facts, OLDEST):
        yield problem(
            f"the server is {older[0]}",
            "it cannot run the function library, so no worker starts",
            f"upgrade it to {older[1]} or newer",
        )


def moves(facts: Facts) -> Iterator[Found]:
    """Find a cluster that moves a hash slot key by key: Redis before 8.4, Valkey before 9.0."""
    if _info(facts).get("cluster_enabled") == "1" and (older := _older_than(facts, MOVES_AT_ONCE)):
        yield advice(
            f"the cluster is of {older[0]}, which moves a hash slot key by key",
            "if the slot of the namespace moves, no task starts until the move ends, and both "
            "nodes stand still while the messages of all waiting tasks are copied",
            f"move that slot only while few tasks wait, or upgrade to {older[1]} or newer",
        )


def role(facts: Facts) -> Iterator[Found]:
    """Find that the server is a replica."""
    if _info(facts).get("role") == "slave":
        yield problem(
            "the server is a replica",
            "it rejects every write, so no task starts",
            "correct the address, or promote the server",
        )


def eviction(facts: Facts) -> Iterator[Found]:
    """Find that ``maxmemory-policy`` is not ``noeviction``."""
    info = _info(facts)
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return
    fix = "run CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration"
    if int(info.get("maxmemory", 0)):
        yield problem(
            f"maxmemory-policy is {policy}",
            f"at its memory limit the server deletes {_lost(facts)} without a trace",
            fix,
        )
    else:
        yield advice(
            f"maxmemory-policy is {policy}, and maxmemory is not set",
            f"once somebody sets maxmemory, a full memory deletes {_lost(facts)}",
            fix,
        )


def memory(facts: Facts) -> Iterator[Found]:
    """Find that 75 % of ``maxmemory`` are in use; a problem from 90 %."""
    info = _info(facts)
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if most and used >= MEMORY_ADVICE * most:
        consequence = "its next tasks are rejected" if facts.claims else "tasks can no longer park"
        yield (problem if used >= MEMORY_PROBLEM * most else advice)(
            f"the server uses {used / most:.0%} of its maxmemory ({most / 2**20:,.0f} MiB)",
            f"at 100 % Redis takes no more writes that need memory, so {consequence}",
            "raise maxmemory, start workers, or bound the backlog with max_waiting",
        )


def persistence(facts: Facts) -> Iterator[Found]:
    """Find that the server has no append-only file, or could not write to its disk.

    A problem on ``fairredis`` if it has neither snapshots nor a replica.
    """
    info, config = _info(facts), (facts.server and facts.server.config) or {}
    if not info:
        return
    for name, what in (
        ("aof_last_write_status", "the append-only file"),
        ("rdb_last_bgsave_status", "the snapshot"),
    ):
        if info.get(name, "ok") != "ok":
            yield problem(
                f"the server could not write {what}",
                "a restart loses what was written since then, and Redis may reject all writes",
                "look at the server's log and its disk",
            )
    if info.get("aof_enabled") == "1":
        return
    fix = "set appendonly yes"
    if config.get("save") == "" and not int(info.get("connected_slaves", 0)):
        yield (problem if facts.claims else advice)(
            "the server writes nothing to a disk and has no replica",
            f"a restart of the server loses all {_lost(facts)}",
            fix,
        )
    else:
        yield advice(
            "appendonly is no",
            f"a crash of the server loses {_lost(facts)} since its last snapshot or failover",
            fix,
        )


def replicas(facts: Facts) -> Iterator[Found]:
    """Find that ``min-replicas-to-write`` is 0 behind Sentinel or in a cluster."""
    config = (facts.server and facts.server.config) or {}
    if config.get("min-replicas-to-write") != "0":
        return
    address = facts.installation.limiter.connection.address
    if address.master_name or address.is_cluster:
        where = "behind Sentinel" if address.master_name else "in a cluster"
        yield advice(
            f"min-replicas-to-write is 0 {where}",
            "a master that is cut off goes on to accept tasks, and a failover loses them",
            "run CONFIG SET min-replicas-to-write 1",
        )


def clock(facts: Facts) -> Iterator[Found]:
    """Find that the clocks of the server and of this host differ by 1 s; a problem from 10 s."""
    if facts.server is None:
        return
    ahead = facts.server.ahead_seconds
    # The server's answer came at some moment of the message's way.
    off = abs(ahead) - facts.server.ping_seconds
    if off >= CLOCK_ADVICE_SECONDS:
        side = "ahead of" if ahead > 0 else "behind"
        yield (problem if off >= CLOCK_PROBLEM_SECONDS else advice)(
            f"the server's clock is {abs(ahead):.0f} s {side} the clock of this host",
            "tasks with a countdown start that much too early or too late, and so do ends of "
            "pauses that are given as a time",
            "run NTP on both",
        )


def latency(facts: Facts) -> Iterator[Found]:
    """Find that a message to Redis and back takes 10 ms; a problem from 100 ms."""
    if facts.server is None or facts.server.ping_seconds < LATENCY_ADVICE_SECONDS:
        return
    seconds = facts.server.ping_seconds
    yield (problem if seconds >= LATENCY_PROBLEM_SECONDS else advice)(
        f"a message to Redis and back takes {seconds * 1000:.0f} ms",
        "each start of a task waits for at least one of them",
        "put Redis and the workers into one network, and look for slow commands: SLOWLOG GET",
    )
