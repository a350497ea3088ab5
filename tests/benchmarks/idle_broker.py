"""A broker that takes no time, and the app of stock Celery on it: how fast a worker can be at most.

It has one message, which ``delay`` has published. A worker decodes it again and again, up to its
prefetch count, and an ack only counts. A message that comes back is dropped as well.

Celery has two loops, and each pool is faster in one of them. Processes are faster in the event
loop. Threads are faster in the blocking loop, because each of their acks wakes the event loop.
gevent has the blocking loop alone.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

import kombu.transport
from celery import Celery
from celery.signals import worker_ready
from kombu.transport import virtual

#: The variable that names the file with the number of acks.
FILE_VARIABLE = "BENCH_ACKS"
WIDTH = 8
#: The broker's address, with which a worker runs the event loop or the blocking one.
EVENTED, BLOCKING = "idle-evented://", "idle://"

# Kombu looks for schemes in this table alone.
kombu.transport.TRANSPORT_ALIASES["idle"] = "tests.benchmarks.idle_broker:Transport"
kombu.transport.TRANSPORT_ALIASES["idle-evented"] = "tests.benchmarks.idle_broker:Evented"
app = Celery("bench_idle", broker=os.environ.get("BENCH_BROKER_URL", BLOCKING))
app.conf.update(task_ignore_result=True, worker_enable_remote_control=False)


@app.task
def plain(user: str) -> None:
    """Do nothing."""


@worker_ready.connect(weak=False)
def _publish(**_: object) -> None:
    plain.delay("0")


class Acks:
    """The number of acks of a worker, in memory that it shares through a file.

    A write to a file would cost each ack a system call.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map the file, which has `WIDTH` bytes."""
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), WIDTH)

    def read(self) -> int:
        """Return the number."""
        return int.from_bytes(self._shared[:], "little")

    def write(self, number: int) -> None:
        """Replace the number."""
        self._shared[:] = number.to_bytes(WIDTH, "little")


def count_acks(folder: str) -> tuple[Acks, dict[str, str]]:
    """Return a counter in a file of the folder, and the variable that gives a worker this file."""
    path = Path(folder, "acks")
    path.write_bytes(bytes(WIDTH))
    return Acks(path), {FILE_VARIABLE: str(path)}


class QoS(virtual.QoS):
    """Counts messages. All have one tag, and a set of tags would hold one of them."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        """Begin with no message."""
        super().__init__(channel, prefetch_count)
        self._taken = self._acked = 0
        # In the blocking loop the threads of a pool ack.
        self._lock = threading.Lock()
        self._acks = Acks(os.environ[FILE_VARIABLE])

    def can_consume(self) -> bool:
        """Return whether the worker takes another message."""
        return self._taken - self._acked < self.prefetch_count

    def append(self, message: object, delivery_tag: str) -> None:
        """Count a message that the worker has."""
        self._taken += 1

    def ack(self, delivery_tag: str) -> None:
        """Count a message that a process has accepted."""
        with self._lock:
            self._acked += 1
            self._acks.write(self._acked)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message."""
        self.ack(delivery_tag)


class Channel(virtual.Channel):
    """Queues with one message, which never leaves."""

    QoS = QoS
    do_restore = False
    #: The message, encoded. It is the same for every connection of the process.
    message = ""

    def _new_queue(self, queue: str, **_: object) -> None:
        pass

    def _has_queue(self, queue: str, **_: object) -> bool:
        return True

    def _size(self, queue: str) -> int:
        return 1

    def _purge(self, queue: str) -> int:
        return 0

    def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
        Channel.message = json.dumps(message)

    def deliver(self) -> None:
        """Hand the worker as many messages as it takes, or one prefetch count of them.

        Without that bound a worker with gevent takes messages without end: it acks meanwhile.
        """
        (queue,) = self._active_queues
        for _ in range(self.qos.prefetch_count if self.message else 0):
            if not self.qos.can_consume():
                break
            self.connection._deliver(json.loads(self.message), queue)


class Transport(virtual.Transport):
    """Messages are ready whenever the blocking loop drains events."""

    Channel = Channel
    driver_type = driver_name = "idle"

    def driver_version(self) -> str:
        """Return no version."""
        return "N/A"

    def drain_events(self, connection: object, timeout: float | None = None) -> None:
        """Deliver, and let threads and greenlets run.

        Raises:
            TimeoutError: Each time, so that the worker goes on with its loop.
        """
        self.deliver()
        time.sleep(0)
        raise TimeoutError

    def deliver(self) -> None:
        """Deliver to each channel with a consumer."""
        for channel in self.channels:
            if channel._consumers:
                channel.deliver()


class Evented(Transport):
    """Messages are ready whenever the event loop polls.

    Ticks of the loop cannot deliver. After them the loop waits in its poll, though acks are due.
    """

    implements = Transport.implements.extend(asynchronous=True)

    def __init__(self, client: Any, **options: Any) -> None:
        """Make a file descriptor that is always readable."""
        super().__init__(client, **options)
        self._readable = os.eventfd(1)
        self._watched = False

    def register_with_event_loop(self, _: Any, loop: Any) -> None:
        """Let the loop watch the descriptor while the worker takes messages."""

        def watch() -> None:
            wanted = any(each._consumers and each.qos.can_consume() for each in self.channels)
            if wanted and not self._watched:
                loop.add_reader(self._readable, self.deliver)
            elif self._watched and not wanted:
                loop.remove_reader(self._readable)
            self._watched = wanted

        loop.on_tick.add(watch)
