"""Unique ids. They are not secret.

Each process seeds its own generator from the system. The system's random source would cost one
system call per id. The shared generator of :mod:`random` could repeat ids, because a task's body
may seed it.
"""

from __future__ import annotations

import os
import random

_generator = random.Random()
os.register_at_fork(after_in_child=_generator.seed)


def new_id(size_bytes: int) -> str:
    """Return ``2 * size_bytes`` hexadecimal digits."""
    return f"{_generator.getrandbits(8 * size_bytes):0{2 * size_bytes}x}"


def new_lease_id(worker: str = "") -> str:
    """Return the id of a new lease, unique for each attempt: ``WORKER@NONCE``.

    Args:
        worker: The worker that will run the body. "" leaves it out.
    """
    return f"{worker}@{new_id(12)}" if worker else new_id(12)
