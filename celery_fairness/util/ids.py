"""Ids that nobody else has: unique, not secret.

They come from a generator that is seeded by the system in every process. The system's own source
costs a call of the kernel for each id, and the generator of :mod:`random` may be seeded by a task's
body, which would repeat them.
"""

from __future__ import annotations

import hashlib
import os
import random
import re

#: Of the digest of a task's id, hexadecimal.
_DIGITS = 12
#: Ids of tasks that stand in a lease as they are; of others, and of those that look like one, a
#: digest does.
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")

_generator = random.Random()
os.register_at_fork(after_in_child=_generator.seed)


def new_id(size_bytes: int) -> str:
    """Return ``2 * size_bytes`` hexadecimal digits."""
    return f"{_generator.getrandbits(8 * size_bytes):0{2 * size_bytes}x}"


def new_lease_id(task_id: str | None = None, worker: str = "") -> str:
    """Return an id that no other attempt has, and that tells of which task it is.

    Args:
        task_id: Of the task.
        worker: Whose body it will be; the id tells that too.
    """
    own = f"{worker}@{new_id(12)}" if worker else new_id(12)
    return f"{own}.{_named(task_id)}" if task_id else own


def is_lease_of(lease_id: str, task_id: str) -> bool:
    """Say whether a lease of a gate is of an attempt of a task."""
    return lease_id.endswith(f".{_named(task_id)}")


def holder_of(lease_id: str) -> tuple[str, str]:
    """Return worker and task of a lease of a gate, "" where it does not say one."""
    worker, _, rest = lease_id.rpartition("@")
    task_id = rest.partition(".")[2]
    return worker, task_id if _PLAIN.fullmatch(task_id) and not _DIGEST.fullmatch(task_id) else ""


def _named(task_id: str) -> str:
    plain = _PLAIN.fullmatch(task_id) and not _DIGEST.fullmatch(task_id)
    return task_id if plain else _digest(task_id)


def _digest(task_id: str) -> str:
    return hashlib.sha256(task_id.encode("utf-8", "replace")).hexdigest()[:_DIGITS]
