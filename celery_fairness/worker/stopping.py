"""A flag that a worker's main process raises when it begins to stop, seen by its pool children.

It lies in memory that a forked child shares. A pool that spawns its children does not share it:
there a refused task is sent back until the broker takes it or the child is killed.
"""

from __future__ import annotations

import mmap


class StoppingFlag:
    """Down until :meth:`raise_it`; make it before the pool forks."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def raise_it(self) -> None:
        """Say that the worker is stopping."""
        self._byte[0] = 1

    def lower_it(self) -> None:
        """Say that it is not: a new worker starts in this process."""
        self._byte[0] = 0

    def __call__(self) -> bool:
        """Say whether the worker is stopping."""
        return self._byte[0] == 1
