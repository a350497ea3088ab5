"""Ids that nobody else has: unique, not secret.

They come from a generator that is seeded by the system in every process. The system's own source
costs a call of the kernel for each id, and the generator of :mod:`random` may be seeded by a task's
body, which would repeat them.
"""

from __future__ import annotations

import os
import random

_generator = random.Random()
os.register_at_fork(after_in_child=_generator.seed)


def new_id(size_bytes: int) -> str:
    """Return ``2 * size_bytes`` hexadecimal digits."""
    return f"{_generator.getrandbits(8 * size_bytes):0{2 * size_bytes}x}"
