"""The tables of an installation agree: by the check, and by sums that no call could bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_fairness.scheduler.calls import rules_args
from celery_fairness.scheduler.types import Rules
from celery_fairness.store.library import check_library
from tests.support.library import call


def assert_sums_agree(client: Any, prefix: str) -> None:
    """Compare each count with what it counts; nothing may change meanwhile.

    Args:
        client: One that decodes.
        prefix: What every key of the installation begins with.
    """

    def names(kind: str) -> list[str]:
        return [key.removeprefix(f"{prefix}{kind}:") for key in client.keys(f"{prefix}{kind}:*")]

    of_queue: dict[str, int] = {}
    for key in names("tenant_state"):
        for field, number in client.hgetall(f"{prefix}tenant_state:{key}").items():
            if field.startswith("q:"):
                of_queue[field[2:]] = of_queue.get(field[2:], 0) + int(number)
    waiting = {queue: int(number) for queue, number in client.hgetall(f"{prefix}waiting").items()}
    assert waiting == of_queue
    lanes = sum(client.zcard(f"{prefix}lane:{name}") for name in names("lane"))
    assert lanes == sum(waiting.values())
    later = sum(client.zcard(f"{prefix}scheduled:{name}") for name in names("scheduled"))
    of_tenants = sum(client.zcard(f"{prefix}scheduled_of:{name}") for name in names("scheduled_of"))
    assert of_tenants == later
    dead = {tag for name in names("dead") for tag in client.zrange(f"{prefix}dead:{name}", 0, -1)}
    ended = set(client.zrange(f"{prefix}outcomes", 0, -1))
    tags = set(client.hkeys(f"{prefix}tasks"))
    # The broker of a promotion that was sent has its task.
    running = [row for row in claimed(client, prefix).values() if " sent@" not in row]
    known = lanes + later + len(running) + len(dead | ended)
    assert len(tags) == known
    assert tags == set(client.hkeys(f"{prefix}messages"))
    found = client.hvals(f"{prefix}ids")
    found += [
        tag for name in names("same_id") for tag in client.zrange(f"{prefix}same_id:{name}", 0, -1)
    ]
    assert len(found) == len(set(found))
    assert set(found) <= tags
    unique = client.hgetall(f"{prefix}unique")
    taken = {k[4:]: tag.split(" ", 1)[1] for k, tag in unique.items() if k.startswith("key ")}
    by_task = {k[5:]: key for k, key in unique.items() if k.startswith("task ")}
    # After a replace beside a running task, both name the key, and the new one has it.
    assert {key: by_task[tag] for key, tag in taken.items()} == {key: key for key in taken}
    assert by_task.keys() <= tags - dead - ended


def exceeded_in(counts: Mapping[str, str]) -> dict[str, str]:
    """Return how often limits rejected, by strategy and key, from the fields of ``counters``."""
    first = "rejections "
    fields = counts.items()
    return {name.removeprefix(first): count for name, count in fields if name.startswith(first)}


def claimed(client: Any, prefix: str) -> dict[str, str]:
    """Return the rows of claimed tasks by tag. The row of any other lease has the state held."""
    rows = client.hgetall(f"{prefix}running")
    return {tag: row for tag, row in rows.items() if not row.split(" ")[2].startswith("held")}


def leases_of(client: Any, prefix: str) -> list[str]:
    """Return the leases of claimed tasks.

    Args:
        client: One that decodes.
        prefix: What every key of the installation begins with.
    """
    rows = claimed(client, prefix)
    return [f"{tag}.{row.partition(' ')[0]}" for tag, row in rows.items()]


def findings(
    client: Any, prefix: str, rules: Rules, now_ms: int, *, repair: bool = False
) -> list[tuple[str, str, str]]:
    """Return what the check library finds in an installation whose clock is frozen.

    Args:
        client: One that decodes.
        prefix: What every key of the installation begins with.
        rules: Those of its workers.
        now_ms: The server's time.
        repair: Whether to repair it.
    """
    lease_ms, _, default_tier, default_numbers, _ = rules_args(rules)
    settings = (lease_ms, default_tier, default_numbers, now_ms)
    keys = ["clock", *(key.removeprefix(prefix) for key in client.keys(f"{prefix}*"))]
    rest = [word for key in keys for word in (key, "0")]
    found = []
    while rest:
        args = (*settings, *rest)
        rest, rows = call(client, "repair" if repair else "check", prefix, args, check_library())
        found += [(name, key, row) for name, key, row, _, _ in rows]
    return found
