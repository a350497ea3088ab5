"""A PostgreSQL cluster of our own, from what the system has installed.

Invariant: it lives in a temporary folder on its own port and is gone after `stop()`. Started by
root it runs as another account, since PostgreSQL rejects root.

Weakness: it is tuned to be fast and forgetful, so nothing about crashes is learned from it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.support.local_process import LocalProcess
from tests.support.redis_server import HOST, ReservedPort
from tests.support.servers import (
    START_TIMEOUT_SECONDS,
    STOP_TIMEOUT_SECONDS,
    NotInstalled,
    ServerDied,
    find_program,
)
from tests.support.waiting import eventually

INITDB = ("--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")


class PostgresServer:
    """One PostgreSQL cluster in a temporary folder; no password, and no promise after a crash."""

    user = "postgres"
    password = ""
    host = HOST
    database = "postgres"

    def __init__(self) -> None:
        places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        self._postgres = find_program("postgres", "postgresql", places)
        self._initdb = find_program("initdb", "postgresql", places)
        self._directory: Path | None = None
        self._process: LocalProcess | None = None
        self._reserved: ReservedPort | None = None

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        assert self._reserved is not None, "PostgreSQL was not started"
        return self._reserved.number

    @property
    def dsn(self) -> str:
        """The URL of its first database."""
        return f"postgresql://{self.user}@{self.host}:{self.port}/{self.database}"

    def start(self) -> Self:
        """Make a cluster, start it, and return once it takes connections.

        Raises:
            ServerDied: it ended before that; with its log.
        """
        directory = self._directory = Path(tempfile.mkdtemp(prefix="fairness-postgres-"))
        self._reserved = ReservedPort()
        as_user = self._unprivileged(directory)
        data = directory / "data"
        try:
            subprocess.run(
                [*as_user, str(self._initdb), *INITDB, "-D", str(data), "-U", self.user],
                cwd=directory,
                capture_output=True,
                text=True,
                check=True,
            )
            options = {
                "listen_addresses": HOST,
                "unix_socket_directories": "",
                "fsync": "off",
                "full_page_writes": "off",
                "synchronous_commit": "off",
            }
            process = self._process = LocalProcess(
                "postgres",
                [*as_user, str(self._postgres), "-D", str(data), "-p", str(self.port)]
                + [part for key, value in options.items() for part in ("-c", f"{key}={value}")],
                cwd=directory,
            ).start()

            def answers() -> None:
                if not process.alive:
                    raise ServerDied(f"PostgreSQL ended; its log:\n{process.log_text()}")
                assert "ready to accept connections" in process.log_text()

            eventually(answers, timeout_seconds=START_TIMEOUT_SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it and remove its folder; harmless twice."""
        if self._process is not None:
            # SIGINT is its fast shutdown; SIGTERM would wait for clients to leave.
            self._process.stop("SIGINT", timeout_seconds=STOP_TIMEOUT_SECONDS)
            self._process.assert_gone()
            self._process.discard_log()
        if self._reserved is not None:
            self._reserved.release()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._process = self._reserved = self._directory = None

    def pids(self) -> list[int]:
        """All processes of this server."""
        return [] if self._process is None else [found.pid for found in self._process.survivors()]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @staticmethod
    def _unprivileged(directory: Path) -> list[str]:
        """The words that run a command as somebody else: PostgreSQL rejects to run as root."""
        if os.geteuid() != 0:
            return []
        for name in ("postgres", "nobody"):
            try:
                account = pwd.getpwnam(name)
            except KeyError:
                continue
            os.chown(directory, account.pw_uid, account.pw_gid)
            ids = ["--reuid", str(account.pw_uid), "--regid", str(account.pw_gid)]
            # Changing the user forgets the death signal of LocalProcess, so it is set again.
            return ["setpriv", *ids, "--clear-groups", "--pdeathsig", "INT"]
        raise NotInstalled("PostgreSQL does not run as root, and there is no other account")
