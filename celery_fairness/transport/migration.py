"""Moves tasks from stock queues to fair ones, and back.

A producer that still sends to ``redis://`` leaves its messages in plain lists. A channel that
claims from a queue takes them over, unless an operator has moved the queue to ``redis://``. One
call removes a message from one side and adds it to the other, so no death loses or doubles it.
Unreadable entries go into quarantine.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis import Redis
from redis.exceptions import ResponseError

from celery_fairness.config.queue_policy import QUEUE_NAME
from celery_fairness.control.health.table_check import Progress
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.workers import living
from celery_fairness.control.queue.queues_api import QueuesApi
from celery_fairness.errors import NotFound, suggestion
from celery_fairness.message.headers import HEADER
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claimed, Put, Settle, Verdict, Waiting
from celery_fairness.store.connection import REDIS_ERRORS
from celery_fairness.store.library import is_missing, library
from celery_fairness.transport.envelope import placed, waiting_of, with_carried_header
from celery_fairness.transport.session import Claimant, Session
from celery_fairness.util.log_fields import about
from celery_fairness.util.value import Value
from celery_fairness.wiring import wired

logger = logging.getLogger("celery_fairness")

#: Messages that one pass takes over from one list.
AT_MOST = 100
#: The longest wait of a move to ``redis://`` for tasks that workers hold, in leases, and the pause
#: between looks, in seconds.
LEASES_WAITED, AGAIN_SECONDS = 1.5, 0.1


class Moved(Value):
    """The result of a move of a queue.

    Attributes:
        queue: The queue.
        to: ``redis`` or ``fairredis``.
        moved: The number of moved tasks.
        waiting: The number of tasks that did not move. A pause or a limit of 0 holds them, Redis
            rejects them, or a producer sent them at the end.
        held_by: Workers on ``fairredis://`` that hold tasks of the queue.
    """

    queue: str
    to: str
    moved: int
    waiting: int
    held_by: tuple[str, ...] = ()


def migrate(app: Any, queue: str, to: str, progress: Progress | None = None) -> Moved:
    """Move the waiting tasks of a queue, while workers run.

    Args:
        app: An app whose broker is ``fairredis://``.
        queue: The queue.
        to: ``redis`` or ``fairredis``.
        progress: Called after each step with the number of moved tasks.

    Raises:
        ValueError: The name is no name of a queue, or the app has another broker.
        NotFound: Nothing names the queue, and it never had a task.
        LimiterUnavailable: Redis does not answer, or answers with an error. The other tasks
            wait where they were.
    """
    if not QUEUE_NAME.accepts(queue):
        raise ValueError(QUEUE_NAME.problem("queue", queue))
    fairness = wired(app)
    installation = fairness.installation
    installation.expect_claims()
    # If Redis is away, kombu would try again for ever.
    installation.reader.read("PING")
    move = to_fair if to == "fairredis" else to_stock
    try:
        with app.connection_for_read() as connection:
            channel = connection.default_channel
            channel.session.completed = fairness.stamp.completed
            _expect_known(installation, channel, queue)
            return move(channel, queue, progress)
    except REDIS_ERRORS as error:
        raise installation.limiter.connection.unavailable(error) from error


def _expect_known(installation: Installation, channel: Any, queue: str) -> None:
    """Raise ``NotFound`` if neither the app nor a worker nor one of the brokers has the queue.

    Most likely the name is misspelled, and its tasks would stay where they are.
    """
    client: Any = Redis(connection_pool=channel.pool)
    # Workers and producers on redis:// bind the queues that they declare.
    binding = channel.global_keyprefix + channel.keyprefix_queue % queue
    if client.exists(binding, *_lists(channel, queue)):
        return
    if client.hexists(channel.session.names.queue_limits, f"moved {queue}"):
        return
    known = {*installation.settings.queues, *installation.app_queues()}
    known.update(name for worker in living(installation.reader) for name in worker.queues)
    if queue in known:
        return
    try:
        QueuesApi(installation).inspect(queue)
    except NotFound:
        near = suggestion(queue, {*known, *installation.known_queues()})
        raise NotFound(
            "queue",
            queue,
            "is not known: expected one that the app or a worker names, or that has or had tasks "
            f"on fairredis:// or redis://{near}",
        ) from None


def adopt(channel: Any, queues: list[str]) -> int:
    """Take over the messages of stock producers in the plain lists of ``queues``.

    Entries that Redis rejects stay in their list, and so do those of queues that an operator has
    moved to ``redis://``.

    Returns:
        The number of entries that left their lists, or 0 if there is nothing to do now.
    """
    if not queues:
        return 0
    client = Redis(connection_pool=channel.pool)
    lists = [(queue, key) for queue in queues for key in _lists(channel, queue)]
    with client.pipeline(transaction=False) as pipe:
        pipe.hmget(channel.session.names.queue_limits, [f"moved {queue}" for queue in queues])
        for _, key in lists:
            # The oldest entries stand at the end.
            pipe.lrange(key, -AT_MOST, -1)
        stay, *found = pipe.execute(raise_on_error=False)
    stay = {queue for queue, moved_away in zip(queues, stay, strict=True) if moved_away}
    moved = 0
    for (queue, key), entries in zip(lists, found, strict=True):
        if not entries:
            continue
        if queue in stay:
            channel.session.notices.warning(
                f"moved {queue}",
                "messages of queue %s stay in its plain lists for workers on redis://. The command "
                "'queue migrate %s --to fairredis' takes them back",
                queue,
                queue,
                extra=about(queue=queue),
            )
            continue
        try:
            if isinstance(entries, ResponseError):
                # The queue's name is the key of another type of value.
                raise entries
            moved += _adopt_list(channel, client, queue, key, entries[::-1])
        except ResponseError as error:
            logger.error(
                "messages in %s stay there for now, Redis rejects them: %s",
                key,
                error,
                extra=about(queue=queue),
            )
    return moved


def _adopt_list(channel: Any, client: Any, queue: str, key: str, entries: list[bytes]) -> int:
    """Move the oldest entries of one plain list, and return their number."""

    def call(function: str, args: list[Any], partition: int = 0) -> Any:
        # Not through the session: an entry may be bytes that are not text.
        prefix = channel.session.partitions.prefix(partition)
        parts = library().function(function), 1, prefix, *args
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
                partition, waiting = placed(waiting, channel.session.partitions)
            except Exception as error:  # noqa: BLE001 - a producer may have written anything
                problem = error
                quarantined += int(call(calls.QUARANTINE, [queue, key, entry]))
            else:
                args = calls.put_args(waiting, plain=key, entry=entry)
                answer = call(calls.ADOPT, args, partition)
                if channel.session.partitions.are_several and calls.rings_bell(answer):
                    channel.session.ring_bell(partition, [queue])
                moved += calls.read_put(answer) not in (Put.GONE, Put.STAYS)
    finally:
        if quarantined:
            there = channel.session.names.of("quarantined", queue)
            logger.error(
                "%d entries of %s cannot be read and are in %s now: %r",
                quarantined,
                key,
                there,
                problem,
                extra=about(queue=queue),
            )
    return moved + quarantined


def _read(channel: Any, queue: str, entry: bytes) -> Waiting:
    """Return a stock producer's message as a task."""
    message = loads(bytes_to_str(entry))
    # Some producers use one tag for all their messages, or none. The call that adopts the message
    # takes it from its list, so a second call finds nothing and needs no tag to see that.
    message["properties"]["delivery_tag"] = str(uuid.uuid4())
    settings = channel.session.settings
    message = with_carried_header(message, settings)
    headers = message.get("headers")
    if isinstance(headers, dict) and HEADER in headers:
        headers[HEADER] = channel.session.completed(str(headers.get("task")), headers[HEADER])
    return waiting_of(queue, message, settings)


def to_fair(channel: Any, queue: str, progress: Progress | None = None) -> Moved:
    """Move the tasks in the plain lists of ``queue`` to ``fairredis://``, the oldest first.

    From then on workers on ``fairredis://`` take over what producers on ``redis://`` still send.

    Args:
        channel: A channel of ``fairredis://``.
        queue: The queue.
        progress: Called after each step with the number of moved tasks.
    """
    client: Any = Redis(connection_pool=channel.pool)
    client.hdel(channel.session.names.queue_limits, f"moved {queue}")
    moved = 0

    def read(command: str, *args: int) -> list[Any]:
        with client.pipeline(transaction=False) as pipe:
            for key in _lists(channel, queue):
                pipe.execute_command(command, key, *args)
            return list(pipe.execute(raise_on_error=False))

    while True:
        oldest = read("LINDEX", -1)
        step = adopt(channel, [queue])
        moved += step
        if progress:
            progress(moved)
        # A worker takes messages over too. Then this step may have moved none.
        if not step and list(map(repr, read("LINDEX", -1))) == list(map(repr, oldest)):
            break
    waiting = sum(each for each in read("LLEN") if isinstance(each, int))
    return Moved(queue=queue, to="fairredis", moved=moved, waiting=waiting)


def to_stock(channel: Any, queue: str, progress: Progress | None = None) -> Moved:
    """Move every waiting task of ``queue`` to the plain lists of the stock transport.

    Workers on ``fairredis://`` may run meanwhile. They leave the plain lists of this queue alone
    from then on, until :func:`to_fair` is called. Tasks that they hold end there, and they still
    claim what producers on ``fairredis://`` send.

    Tasks move in the order of claims, without limits. Tasks of a killed worker come back when their
    leases end. The function waits for them, at most a lease and a half.

    The stock transport starts the lowest number first. With ``priority_order="high_first"`` each
    task gets the priority 0, and the order of the claims replaces the priorities. With
    ``"low_first"`` each task keeps its number.

    Args:
        channel: A channel of ``fairredis://``.
        queue: The queue.
        progress: Called after each step with the number of moved tasks.

    Returns:
        What moved and what stays. Tasks of paused tenants and dead letters stay.
    """
    session = channel.session
    rules = session.rules
    unlimited = replace(rules, enforcement="off", fairness_by="tasks")
    claimant, moved = Claimant(), 0
    held_by: set[str] = set()
    client: Any = Redis(connection_pool=channel.pool)
    client.hset(channel.session.names.queue_limits, f"moved {queue}", "redis")
    waits_until: float | None = None
    while True:
        args = calls.claim_args(claimant.owner, claimant.numbers[0], AT_MOST, [queue], unlimited)
        claim = calls.read_claim(session.call(calls.CLAIM, args))
        claimant.mark_answered()
        if claim.tasks:
            moved += _move_claimed(channel, queue, claim.tasks)
            if progress:
                progress(moved)
            waits_until = None
        if not claim.sleep_ms:
            continue
        held_by = _holders(session, queue)
        if not held_by:
            break
        # Leases end by a clock that only calls move.
        now = monotonic()
        waits_until = waits_until or now + LEASES_WAITED * rules.lease_ms / 1000
        if now >= waits_until:
            break
        sleep(AGAIN_SECONDS)
    while found := session.call(calls.SCHEDULED, [queue, str(AT_MOST)]):
        for tag, message in zip(found[::2], found[1::2], strict=True):
            moved += _move(channel, queue, calls.as_text(message), tag=calls.as_text(tag))
        if progress:
            progress(moved)
    waiting = sum(map(int, session.call(calls.SIZE, calls.size_args(queue))))
    return Moved(
        queue=queue, to="redis", moved=moved, waiting=waiting, held_by=tuple(sorted(held_by))
    )


def _move_claimed(channel: Any, queue: str, tasks: Sequence[Claimed]) -> int:
    """Move claimed tasks. If it is interrupted, the others wait again in their places."""
    moved, rest = 0, list(tasks)
    try:
        while rest:
            moved += _move(channel, queue, rest[0].message, lease=rest[0].lease)
            rest.pop(0)
    finally:
        if rest:
            session = channel.session
            ends = [Settle(task.lease, Verdict.HEAD, begun=False) for task in rest]
            session.call(calls.SETTLE, calls.settle_args(ends, session.rules))
    return moved


def _holders(session: Session, queue: str) -> set[str]:
    """Return the owners that hold tasks of ``queue``."""
    cursor, owners = "0", set[str]()
    while True:
        cursor, *page = map(calls.as_text, session.call(calls.HOLDERS, [queue, cursor]))
        owners.update(page)
        if cursor == "0":
            return owners


def _move(channel: Any, queue: str, message: str, lease: str = "", tag: str = "") -> int:
    """Move one task to its plain list; return 0 if it is not there any more."""
    session = channel.session
    read = loads(message)
    priority = channel._get_message_priority(read, reverse=False)
    if priority and session.settings.priority_order == "high_first":
        # There the number would mean the opposite, also after a retry.
        priority = read["properties"]["priority"] = 0
        message = dumps(read)
    key = channel.global_keyprefix + channel._q_for_pri(queue, priority)
    args = calls.move_to_list_args(session.rules, key, message, lease, tag)
    return int(session.call(calls.MOVE_TO_LIST, args))


def _lists(channel: Any, queue: str) -> list[str]:
    """Return the keys of the plain lists of ``queue``."""
    return [
        channel.global_keyprefix + channel._q_for_pri(queue, priority)
        for priority in channel.priority_steps
    ]
