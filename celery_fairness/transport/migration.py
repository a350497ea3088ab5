"""Moves tasks from stock queues to fair ones, and back.

A producer that still sends to ``redis://`` leaves its messages in plain lists. A channel that
claims from a queue takes them over. One call removes a message from its list and puts it into its
lane, so no worker's death loses or doubles it. Unreadable entries go into quarantine.

For the way back, call :func:`to_stock` for each queue after the last worker has left it.
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

#: Messages that one pass takes over from one list.
AT_MOST = 100
#: Longest wait of the way back for tasks that workers hold, in leases, and the pause between looks,
#: in seconds.
LEASES_WAITED, AGAIN_SECONDS = 1.5, 0.1
#: A delivery tag that a record can hold.
_TAG = re.compile(r"[!-~]+")


def adopt(channel: Any, queues: list[str]) -> int:
    """Take over the messages of stock producers in the plain lists of ``queues``.

    Entries that Redis rejects stay in their list.

    Returns:
        The number of entries that left their lists, or 0 if there is nothing to do now.
    """
    client = Redis(connection_pool=channel.pool)
    lists = [
        (queue, channel.global_keyprefix + channel._q_for_pri(queue, priority))
        for queue in queues
        for priority in channel.priority_steps
    ]
    with client.pipeline(transaction=False) as pipe:
        for _, key in lists:
            # The oldest entries stand at the end.
            pipe.lrange(key, -AT_MOST, -1)
        found = pipe.execute(raise_on_error=False)
    moved = 0
    for (queue, key), entries in zip(lists, found, strict=True):
        if not entries:
            continue
        try:
            if isinstance(entries, ResponseError):
                # The queue's name is the key of another type of value.
                raise entries
            moved += _adopt_list(channel, client, queue, key, entries[::-1])
        except ResponseError as error:
            logger.error("messages in %s stay there for now, Redis rejects them: %s", key, error)
    return moved


def _adopt_list(channel: Any, client: Any, queue: str, key: str, entries: list[bytes]) -> int:
    """Move the oldest entries of one plain list, and return their number."""

    def call(function: str, args: list[Any]) -> Any:
        # Not through the session: an entry may be bytes that are not text.
        parts = library().function(function), 1, channel.session.prefix, *args
        try:
            return client.fcall(*parts)
        except ResponseError as error:
            if not is_missing(error):
                raise
        channel.session.load_library()
        return client.fcall(*parts)

    moved = quarantined = 0
    problem: Exception | None = None
    try:
        for entry in entries:
            try:
                waiting = _read(channel, queue, entry)
            except Exception as error:  # noqa: BLE001 - a producer may have written anything
                problem = error
                quarantined += int(call(calls.QUARANTINE, [queue, key, entry]))
            else:
                answer = call(calls.ADOPT, calls.put_args(waiting, plain=key, entry=entry))
                moved += calls.read_put(answer) is not Put.GONE
    finally:
        if quarantined:
            there = f"{channel.session.prefix}aside:{queue}"
            logger.error(
                "%d entries of %s cannot be read and are in %s now: %r",
                quarantined,
                key,
                there,
                problem,
            )
    return moved + quarantined


def _read(channel: Any, queue: str, entry: bytes) -> Waiting:
    """Return a stock producer's message as a task; without a valid tag it gets a new one."""
    message = loads(bytes_to_str(entry))
    properties = message["properties"]
    tag = properties.get("delivery_tag")
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        properties["delivery_tag"] = str(uuid.uuid4())
    return waiting_of(queue, message, channel.session.settings)


def to_stock(channel: Any, queue: str) -> int:
    """Move every waiting task of ``queue`` to the plain lists of the stock transport.

    Tasks move in the order of claims, without limits. Tasks of a killed worker come back when their
    leases end. The function waits for them, at most a lease and a half.

    The stock transport starts the lowest number first. With ``priority_order="high_first"`` each
    task gets the priority 0, and the order of the claims replaces the priorities. With
    ``"low_first"`` each task keeps its number.

    Returns:
        The number of moved tasks. Tasks of paused tenants and dead letters stay. Tasks that a
        worker still holds also stay, with a warning.
    """
    session = channel.session
    rules = session.rules
    unlimited = replace(rules, enforcement="off", fairness_by="tasks")
    claimant, moved = Claimant(), 0
    client: Any = Redis(connection_pool=channel.pool)
    last_look = monotonic() + LEASES_WAITED * rules.lease_ms / 1000
    ends: list[Settle] = []
    while True:
        args = calls.claim_args(
            claimant.owner, claimant.number, AT_MOST, [queue], unlimited, ends=ends
        )
        claim = calls.read_claim(session.call(calls.CLAIM, args))
        claimant.number += 1
        for task in claim.tasks:
            _push(channel, client, queue, task.message)
            moved += 1
        ends = [Settle(task.lease, Verdict.DONE) for task in claim.tasks]
        if claim.sleep_ms:
            owners = set(map(calls.as_text, session.call(calls.HOLDERS, [queue])))
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
    while found := session.call(calls.SCHEDULED, [queue, str(AT_MOST)]):
        for tag, message in zip(found[::2], found[1::2], strict=True):
            _push(channel, client, queue, calls.as_text(message))
            session.call(calls.REMOVE, [calls.as_text(tag)])
            moved += 1
    return moved


def _push(channel: Any, client: Any, queue: str, message: str) -> None:
    read = loads(message)
    priority = channel._get_message_priority(read, reverse=False)
    if priority and channel.session.settings.priority_order == "high_first":
        # There the number would mean the opposite, also after a retry.
        priority = read["properties"]["priority"] = 0
        message = dumps(read)
    client.lpush(channel.global_keyprefix + channel._q_for_pri(queue, priority), message)
