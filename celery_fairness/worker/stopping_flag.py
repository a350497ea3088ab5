"""A flag that a worker's main process raises when it begins to stop, for its pool children.

The flag lies in memory that a forked child shares. A spawned child does not share it. There the
resender tries until the broker accepts the task or the child is killed.
"""

from __future__ import annotations

import mmap


class StoppingFlag:
    """A flag that is down until :meth:`raise_it`. Make it before the pool forks."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def raise_it(self) -> None:
        """Mark the worker as stopping."""
        self._byte[0] = 1

    def lower_it(self) -> None:
        """Mark the worker as running: a new worker starts in this process."""
        self._byte[0] = 0

    def __call__(self) -> bool:
        """Return whether the worker is stopping."""
        return self._byte[0] == 1
