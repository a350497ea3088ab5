"""Unique ids. They are not secret.

Each process seeds its own generator from the system. The system's random source would cost one
system call per id. The shared generator of :mod:`random` could repeat ids, because a task's body
may seed it.
"""

from __future__ import annotations

import hashlib
import os
import random
import re

#: Length of the digest of a task's id, in hexadecimal digits.
_DIGITS = 12
#: A lease's id has a task's id as it is if it matches this and does not look like a digest. For
#: all other tasks it has a digest.
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")

_generator = random.Random()
os.register_at_fork(after_in_child=_generator.seed)


def new_id(size_bytes: int) -> str:
    """Return ``2 * size_bytes`` hexadecimal digits."""
    return f"{_generator.getrandbits(8 * size_bytes):0{2 * size_bytes}x}"


def new_lease_id(task_id: str | None = None, worker: str = "") -> str:
    """Return the id of a new lease, unique for each attempt: ``WORKER@NONCE.TASK``.

    Args:
        task_id: The task's id. None leaves it out.
        worker: The worker that will run the body. "" leaves it out.
    """
    own = f"{worker}@{new_id(12)}" if worker else new_id(12)
    return f"{own}.{_task_part(task_id)}" if task_id else own


def is_lease_of(lease_id: str, task_id: str) -> bool:
    """Return whether a gate's lease belongs to an attempt of a task."""
    return lease_id.endswith(f".{_task_part(task_id)}")


def holder_of(lease_id: str) -> tuple[str, str]:
    """Return worker and task id of a gate's lease; "" for each that the id lacks."""
    worker, _, rest = lease_id.rpartition("@")
    task_id = rest.partition(".")[2]
    return worker, task_id if _PLAIN.fullmatch(task_id) and not _DIGEST.fullmatch(task_id) else ""


def _task_part(task_id: str) -> str:
    plain = _PLAIN.fullmatch(task_id) and not _DIGEST.fullmatch(task_id)
    return task_id if plain else _digest(task_id)


def _digest(task_id: str) -> str:
    return hashlib.sha256(task_id.encode("utf-8", "replace")).hexdigest()[:_DIGITS]
