"""The way from stock queues to fair ones, and back.

A producer that still sends to ``redis://`` leaves its messages in plain lists. A channel that
claims from a queue takes them over: it puts each under its own delivery tag, which does nothing
where another worker has done so, and removes it from the list. A worker that dies between the two
has put the message, and the next one removes it.

The way back is one call of :func:`to_stock` for each queue, when nobody claims from it any more.
"""

from __future__ import annotations

import logging
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis import Redis

from celery_fairness.scheduling.words import Rules, Settle, Verdict
from celery_fairness.store import verbs
from celery_fairness.transport.envelope import waiting_of
from celery_fairness.transport.home import Claimant

logger = logging.getLogger("celery_fairness")

#: Messages of one list that are taken over at a time.
AT_MOST = 100


def adopt(channel: Any, queues: list[str]) -> int:
    """Take over what stock producers left in the plain lists of ``queues``.

    Returns:
        How many messages; as many as :data:`AT_MOST` or more where there may be others.
    """
    adopted = 0
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
        found = pipe.execute()
    for (queue, key), messages in zip(lists, found, strict=True):
        for raw in reversed(messages):
            try:
                waiting = waiting_of(queue, loads(bytes_to_str(raw)), channel.home.options)
            except (ValueError, TypeError, KeyError) as error:
                logger.error("a message in %s is left there, it cannot be read: %r", key, error)
                continue
            channel.home.put(waiting)
            client.lrem(key, -1, raw)
            adopted += 1
    return adopted


def to_stock(channel: Any, queue: str) -> int:
    """Move every waiting task of ``queue`` to the plain lists of the stock transport.

    Their order among tenants is that of the claims; limits do not hold any more.

    Returns:
        How many tasks. Those of paused tenants stay.
    """
    home = channel.home
    rules = home.rules
    unlimited = Rules(
        rules.lease_ms, "off", rules.default_tier, rules.default_limit, rules.max_deliveries
    )
    claimant, moved = Claimant(), 0
    client: Any = Redis(connection_pool=channel.pool)
    while True:
        args = verbs.claim_args(claimant.owner, claimant.number, AT_MOST, [queue], unlimited)
        claim = verbs.read_claim(home.call(verbs.CLAIM, args))
        claimant.number += 1
        for task in claim.tasks:
            _push(channel, client, queue, task.message)
            moved += 1
        if claim.tasks:
            ends = [Settle(task.lease, Verdict.DONE, task.lane) for task in claim.tasks]
            home.call(verbs.SETTLE, verbs.settle_args(ends, unlimited))
        elif claim.sleep_ms:
            break
    later = f"{home.prefix}later:{queue}"
    while members := client.zrange(later, 0, AT_MOST - 1):
        for member in members:
            head, _, message = bytes_to_str(member).partition("\n")
            _push(channel, client, queue, message)
            # The order among those of one time, seq, tag.
            client.srem(f"{home.prefix}known", head.split(" ")[2])
            client.zrem(later, member)
            moved += 1
    return moved


def _push(channel: Any, client: Any, queue: str, message: str) -> None:
    priority = channel._get_message_priority(loads(message), reverse=False)
    client.lpush(channel.global_keyprefix + channel._q_for_pri(queue, priority), message)
