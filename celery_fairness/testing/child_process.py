"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# A `preexec_fn` would run Python between fork and exec, which deadlocks when another thread held a
# lock at the fork; a second exec costs 20 ms and cannot. The parent may die before prctl is called,
# hence the look at getppid.
_DIES_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def dying_with_parent(argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` so that the kernel ends it (SIGTERM) when we end.

    The process keeps one pid throughout. Off Linux it is `argv` unchanged.
    """
    if sys.platform != "linux":
        return list(argv)
    return [sys.executable, "-I", "-S", "-c", _DIES_WITH_PARENT, str(os.getpid()), *argv]
