"""What the servers of the tests share: where their programs are, and how they fail.

Invariant: each server (`RabbitServer`, `PostgresServer`, `RedisServer`) has its own ports, folders,
names and secrets and is ended by process id, so neither a system service nor a second run of the
suite on the same machine is disturbed.

Weakness: Debian's places are known, and PATH; elsewhere the programs must be on PATH.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from tests.support.redis_server import HOST
from tests.support.waiting import at_most

START_TIMEOUT_SECONDS = at_most(60.0)
STOP_TIMEOUT_SECONDS = at_most(15.0)


class NotInstalled(RuntimeError):
    """A server's programs are not on this machine; the message names the package."""


class ServerDied(RuntimeError):
    """A server ended while it was starting; the message holds its log."""


def find_program(program: str, package: str, places: Sequence[str | Path] = ()) -> Path:
    """Path of a server's program, looked for in `places` and then on PATH.

    Raises:
        NotInstalled: it is in neither; the message names Debian's `package`.
    """
    for place in places:
        candidate = Path(place) / program
        if os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which(program)
    if found is None:
        raise NotInstalled(f"{program} is not installed (Debian: apt-get install {package})")
    return Path(found)


def find_chromium() -> str:
    """Path of a Chromium that a test may drive.

    Raises:
        NotInstalled: there is none.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    raise NotInstalled("chromium is not installed (Debian: apt-get install chromium)")


def listens(port: int) -> bool:
    """Whether somebody takes connections on this local port."""
    try:
        socket.create_connection((HOST, port), timeout=at_most(1.0)).close()
    except OSError:
        return False
    return True
