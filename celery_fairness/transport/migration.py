"""The way from stock queues to fair ones, and back.

A producer that still sends to ``redis://`` leaves its messages in plain lists. A channel that
claims from a queue takes them over. Each leaves its list and begins to wait in one call, so none is
lost with the worker that took it and none comes twice. What nobody can read is moved aside.

The way back is one call of :func:`to_stock` for each queue, when nobody claims from it any more.
"""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis import Redis
from redis.exceptions import ResponseError

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Put, Settle, Verdict, Waiting
from celery_fairness.store.library import is_missing, library
from celery_fairness.transport.envelope import waiting_of
from celery_fairness.transport.session import Claimant

logger = logging.getLogger("celery_fairness")

#: Messages of one list that are taken over at a time.
AT_MOST = 100
#: How long the way back waits for what workers hold, in leases, and how often it looks, in seconds.
LEASES_WAITED, AGAIN_SECONDS = 1.5, 0.1
#: A delivery tag that may stand in a record.
_TAG = re.compile(r"[!-~]+")


def adopt(channel: Any, queues: list[str]) -> int:
    """Take over what stock producers left in the plain lists of ``queues``.

    What Redis refuses stays in its list.

    Returns:
        How many entries have left their lists; 0 where there is nothing to do now.
    """
    client = Redis(connection_pool=channel.pool)
    lists = [
        (queue, channel.global_keyprefix + channel._q_for_pri(queue, priority))
        for queue in queues
        for priority in channel.priority_steps
    ]
    with client.pipeline(transaction=False) as pipe:
        for _, key in lists:
            # The oldest stand at the end.
            pipe.lrange(key, -AT_MOST, -1)
        found = pipe.execute(raise_on_error=False)
    moved = 0
    for (queue, key), entries in zip(lists, found, strict=True):
        if not entries:
            continue
        try:
            if isinstance(entries, ResponseError):
                # Somebody keeps something else under the name of a queue.
                raise entries
            moved += _adopt_list(channel, client, queue, key, entries[::-1])
        except ResponseError as error:
            logger.error("messages in %s stay there for now, Redis refuses: %s", key, error)
    return moved


def _adopt_list(channel: Any, client: Any, queue: str, key: str, entries: list[bytes]) -> int:
    """Move the oldest entries of one plain list, and return how many."""

    def call(function: str, args: list[Any]) -> Any:
        # On a client: an entry is bytes that may be no text.
        parts = library().function(function), 1, channel.home.prefix, *args
        try:
            return client.fcall(*parts)
        except ResponseError as error:
            if not is_missing(error):
                raise
        channel.home.load_library()
        return client.fcall(*parts)

    moved = aside = 0
    problem: Exception | None = None
    try:
        for entry in entries:
            try:
                waiting = _read(channel, queue, entry)
            except Exception as error:  # noqa: BLE001 - anybody may have written anything
                problem = error
                aside += int(call(calls.QUARANTINE, calls.quarantine_args(queue, key, entry)))
            else:
                answer = call(calls.ADOPT, calls.put_args(waiting, plain=key, entry=entry))
                moved += calls.read_put(answer) is not Put.GONE
    finally:
        if aside:
            there = f"{channel.home.prefix}aside:{queue}"
            logger.error(
                "%d entries of %s cannot be read and lie in %s now: %r", aside, key, there, problem
            )
    return moved + aside


def _read(channel: Any, queue: str, entry: bytes) -> Waiting:
    """Return a stock producer's message as a task, under a tag of its own where it has none."""
    message = loads(bytes_to_str(entry))
    properties = message["properties"]
    tag = properties.get("delivery_tag")
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        properties["delivery_tag"] = str(uuid.uuid4())
    return waiting_of(queue, message, channel.home.options)


def to_stock(channel: Any, queue: str) -> int:
    """Move every waiting task of ``queue`` to the plain lists of the stock transport.

    Their order among tenants is that of the claims; limits do not hold any more. What a killed
    worker held comes back when its leases end, and is waited for: a lease and a half at most.

    The stock transport starts the lowest number first. If the highest goes first here, each task
    gets the priority 0, and the order of the claims says which is the most urgent; with
    ``priority_order="low_first"`` each keeps its number.

    Returns:
        How many tasks. Those of paused tenants and dead letters stay, and what a worker still
        holds, with a warning.
    """
    home = channel.home
    rules = home.rules
    unlimited = replace(rules, enforcement="off", fairness_by="tasks")
    claimant, moved = Claimant(), 0
    client: Any = Redis(connection_pool=channel.pool)
    last_look = monotonic() + LEASES_WAITED * rules.lease_ms / 1000
    ends: list[Settle] = []
    while True:
        args = calls.claim_args(
            claimant.owner, claimant.number, AT_MOST, [queue], unlimited, ends=ends
        )
        claim = calls.read_claim(home.call(calls.CLAIM, args))
        claimant.number += 1
        for task in claim.tasks:
            _push(channel, client, queue, task.message)
            moved += 1
        ends = [Settle(task.lease, Verdict.DONE, task.lane) for task in claim.tasks]
        if claim.sleep_ms:
            owners = _owners(client, home.prefix, queue)
            if not owners:
                break
            if monotonic() >= last_look:
                logger.warning(
                    "tasks of queue %s stay on fairredis: they are still held by %s; stop it, and "
                    "call to_stock again",
                    queue,
                    ", ".join(sorted(owners)),
                )
                break
            # Leases end by a clock that only calls move.
            sleep(AGAIN_SECONDS)
    later = f"{home.prefix}later:{queue}"
    while members := client.zrange(later, 0, AT_MOST - 1):
        for member in members:
            head, _, message = bytes_to_str(member).partition("\n")
            _push(channel, client, queue, message)
            # The order among those of one time, seq, tag.
            tag = head.split(" ")[2]
            client.srem(f"{home.prefix}known", tag)
            client.zrem(f"{home.prefix}expires:{queue}", tag)
            client.zrem(later, member)
            moved += 1
    return moved


def _owners(client: Any, prefix: str, queue: str) -> set[str]:
    """Return the processes that hold tasks of ``queue``."""
    name, owners = queue.encode(), set()
    for row in client.hvals(f"{prefix}running"):
        owner, _, length, rest = row.split(b" ", 3)
        if rest[: int(length)] == name:
            owners.add(bytes_to_str(owner))
    return owners


def _push(channel: Any, client: Any, queue: str, message: str) -> None:
    read = loads(message)
    priority = channel._get_message_priority(read, reverse=False)
    if priority and channel.home.options.priority_order == "high_first":
        # Its number would mean the contrary there, also when it is put back or sent again.
        priority = read["properties"]["priority"] = 0
        message = dumps(read)
    client.lpush(channel.global_keyprefix + channel._q_for_pri(queue, priority), message)
