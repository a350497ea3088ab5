"""Changes that another process makes while a test is in the middle of something."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import connections


def elsewhere(change: Callable[[], object]) -> None:
    """Make a change as another process would: with a connection of its own, and to its end."""

    def run() -> None:
        try:
            change()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
