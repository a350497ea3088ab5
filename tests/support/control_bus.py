"""Workers that answer ``active_queues`` on the control bus of an app, and do nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from kombu import Connection

READY_SECONDS = 30.0


class _Bus:
    """Workers that answer ``active_queues`` with what a test wants."""

    def __init__(self, app: Celery, replies: list[tuple[str, Any]]) -> None:
        self._app, self._replies = app, replies
        self.ready = threading.Event()
        self.stop = threading.Event()

    def run(self) -> None:
        with self._app.connection_for_write() as connection:
            consumers = [self._node(connection, *each) for each in self._replies]
            self.ready.set()
            while not self.stop.is_set():
                try:
                    connection.drain_events(timeout=0.1)
                except TimeoutError:
                    continue
            for each in consumers:
                each.cancel()

    def _node(self, connection: Connection, name: str, reply: Any) -> Any:
        control: Any = self._app.control
        mailbox = control.mailbox(connection)
        node = mailbox.Node(
            name, handlers={"active_queues": lambda _: reply}, channel=connection.channel()
        )
        return node.listen()


@contextmanager
def answering(app: Celery, *replies: tuple[str, Any]) -> Iterator[None]:
    """Answer with these names and replies until the end."""
    bus = _Bus(app, list(replies))
    thread = threading.Thread(target=bus.run)
    thread.start()
    try:
        assert bus.ready.wait(READY_SECONDS)
        yield
    finally:
        bus.stop.set()
        thread.join()
