"""Kills process groups when the process that started it is gone, whatever it died of.

A worker that is frozen would outlive every signal but SIGKILL. Lines on standard input: ``+GROUP``
and ``-GROUP``; at the end of the input all that are left are killed.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Read until the end."""
    groups: set[int] = set()
    for line in sys.stdin:
        change = groups.add if line[0] == "+" else groups.discard
        change(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    main()
