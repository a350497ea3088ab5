"""A RabbitMQ broker of our own, from what the system has installed.

Invariant: it has its own node name, ports, port mapper (epmd), folders and cookie, and nothing of
it is left after `stop()`; clients can connect once `start()` has returned.

Weakness: its three ports are known to have been free, not reserved, since Erlang's listeners share
no port with a bound socket.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self
from uuid import uuid4

from tests.support.local_process import LocalProcess
from tests.support.redis_server import HOST, ReservedPort
from tests.support.servers import (
    START_TIMEOUT_SECONDS,
    STOP_TIMEOUT_SECONDS,
    ServerDied,
    find_program,
    listens,
)
from tests.support.waiting import eventually


class RabbitServer:
    """One RabbitMQ broker with its own epmd, no plugins and nothing kept after `stop()`."""

    def __init__(self) -> None:
        # Debian's /usr/sbin scripts change to the system's user and folders; these do not.
        self._program = find_program(
            "rabbitmq-server", "rabbitmq-server", sorted(Path("/usr/lib/rabbitmq").glob("bin"))
        )
        self._epmd_program = find_program("epmd", "erlang-base")
        self._call_program = find_program("erl_call", "erlang-base")
        self._directory: Path | None = None
        self._broker: LocalProcess | None = None
        self._epmd: LocalProcess | None = None
        self._ports: list[ReservedPort] = []
        self._node = f"fairness{os.getpid()}x{uuid4().hex[:6]}@localhost"
        self._cookie = uuid4().hex

    @property
    def port(self) -> int:
        """Where clients connect on 127.0.0.1."""
        return self._ports[0].number

    @property
    def url(self) -> str:
        """The URL that Celery takes; the default virtual host."""
        return self.url_of("/")

    def url_of(self, vhost: str) -> str:
        """The URL of one virtual host."""
        return f"amqp://guest:guest@{HOST}:{self.port}/{'/' if vhost == '/' else vhost}"

    @property
    def pid(self) -> int:
        """Process id of the broker's Erlang machine."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the broker's process runs."""
        return self._broker is not None and self._broker.alive

    def pids(self) -> list[int]:
        """All processes of this server, epmd among them."""
        processes = [process for process in (self._broker, self._epmd) if process is not None]
        return [found.pid for process in processes for found in process.survivors()]

    def start(self) -> Self:
        """Start it and return once clients can connect; harmless when it runs.

        Raises:
            ServerDied: it ended before that; with its log.
        """
        if self.alive:
            return self
        if self._directory is None:
            self._prepare()
        if self._epmd is not None and not self._epmd.alive:
            # Started by us and in the foreground: Erlang would leave its own behind for ever.
            self._epmd.start()
            eventually(
                lambda: listens(self._ports[2].number), timeout_seconds=START_TIMEOUT_SECONDS
            )
        broker = self._running()
        broker.start()

        def answers() -> None:
            if not broker.alive:
                raise ServerDied(f"RabbitMQ ended while starting; its log:\n{broker.log_text()}")
            assert listens(self.port), broker.log_text()
            assert self._call("rabbit:is_running().") == "true"

        try:
            eventually(answers, timeout_seconds=START_TIMEOUT_SECONDS, poll_seconds=0.1)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the broker and its epmd and remove what they wrote; harmless twice."""
        if self._broker is not None:
            # Nothing is kept, so the orderly shutdown (seconds) would be time for nothing.
            self._broker.kill()
            self._broker.assert_gone()
            self._broker.discard_log()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.assert_gone()
            self._epmd.discard_log()
        for port in self._ports:
            port.release()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._broker = self._epmd = self._directory = None
        self._ports = []

    def kill(self) -> None:
        """End the broker as a crash would; durable queues are there again after `start()`."""
        # Quorum queues keep their registry in tables written 3 s late: one that was declared a
        # moment ago would be gone with its messages, which is RabbitMQ's weakness, not our matter.
        self._call("[dets:sync(Table) || Table <- dets:all()], ok.")
        self._running().kill()

    def restart(self) -> Self:
        """End the broker in order and start it again on the same port, with what it stored."""
        self._running().stop(timeout_seconds=STOP_TIMEOUT_SECONDS)
        return self.start()

    def stop_application(self) -> None:
        """Stop the broker inside its process: connections are closed, new ones rejected."""
        self._call("rabbit:stop().")

    def start_application(self) -> None:
        """Start the broker inside its process again and wait until clients can connect."""
        self._call("rabbit:start().")
        eventually(lambda: listens(self.port), timeout_seconds=START_TIMEOUT_SECONDS)

    def connections(self) -> int:
        """How many clients are connected."""
        return int(self._call("length(rabbit_networking:connections())."))

    def messages(self) -> dict[str, int]:
        """How many messages each queue has, with those that are delivered and not acknowledged."""
        told = self._call(
            "[{binary_to_list(element(4, amqqueue:get_name(Q))), N} || Q <- rabbit_amqqueue:list(),"
            " {messages, N} <- rabbit_amqqueue:info(Q, [messages])]."
        )
        return {name: int(held) for name, held in re.findall(r'"([^"]*)", ?(\d+)', told)}

    def close_connections(self) -> int:
        """Close every client's connection from the broker's side; returns how many."""
        return int(
            self._call(
                "Closed = rabbit_networking:connections(),"
                '[rabbit_networking:close_connection(C, <<"closed by a test">>) || C <- Closed],'
                "length(Closed)."
            )
        )

    def add_vhost(self, name: str) -> str:
        """Make an empty virtual host and return its URL."""
        assert name.isidentifier(), f"a virtual host's name expected to be an identifier: {name}"
        self._call(
            f'ok = rabbit_vhost:add(<<"{name}">>, <<"test">>),'
            f'ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{name}">>,'
            '<<".*">>, <<".*">>, <<".*">>, <<"test">>).'
        )
        return self.url_of(name)

    def delete_vhost(self, name: str) -> None:
        """Remove a virtual host, its queues, and its clients' connections."""
        self._call(f'rabbit_vhost:delete(<<"{name}">>, <<"test">>), ok.')

    def log_text(self) -> str:
        """What the broker printed."""
        return "" if self._broker is None else self._broker.log_text()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> LocalProcess:
        assert self._broker is not None, "RabbitMQ was not started"
        return self._broker

    def _prepare(self) -> None:
        directory = self._directory = Path(tempfile.mkdtemp(prefix="fairness-rabbit-"))
        self._ports = [ReservedPort() for _ in range(3)]
        # Erlang's listeners share no port with a bound socket, so these are only known to be free.
        for port in self._ports:
            port.release()
        amqp, distribution, epmd = (port.number for port in self._ports)
        (directory / "enabled_plugins").write_text("[].\n")
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {HOST}:{amqp}\nlog.console = true\nlog.file = false\n"
            # The machine's other tenants are not our matter: never block publishers.
            "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.relative = 0.9\n"
        )
        cookie = directory / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        # Where Erlang's own tools look for the port mapper.
        erlang = {
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": HOST,
        }
        self._environment = {**os.environ, **erlang}
        self._epmd = LocalProcess(
            "epmd", [str(self._epmd_program), "-port", str(epmd), "-address", HOST], env=erlang
        )
        self._broker = LocalProcess(
            "rabbitmq",
            [str(self._program)],
            env={
                **erlang,
                # With input allowed the script becomes the server instead of watching over it.
                "RABBITMQ_ALLOW_INPUT": "true",
                # An idle scheduler spins for a while; on a busy machine that is others' time.
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                    "-noinput +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
                ),
                "RABBITMQ_NODENAME": self._node,
                "RABBITMQ_DIST_PORT": str(distribution),
                "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
                "RABBITMQ_LOG_BASE": str(directory / "log"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
                "RABBITMQ_PID_FILE": str(directory / "pid"),
                "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
                "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "none.config"),
                "RABBITMQ_GENERATED_CONFIG_DIR": str(directory / "generated"),
                "RABBITMQ_CONF_ENV_FILE": "/dev/null",
                "RABBITMQ_FEATURE_FLAGS_FILE": str(directory / "feature_flags"),
            },
            cwd=directory,
        )

    def _call(self, code: str) -> str:
        """Run Erlang code in the broker: milliseconds, where rabbitmqctl takes a second."""
        done = subprocess.run(
            [str(self._call_program), "-n", self._node, "-c", self._cookie, "-e"],
            input=f"{code}\n".encode(),
            env=self._environment,
            capture_output=True,
            timeout=START_TIMEOUT_SECONDS,
            check=False,
        )
        answer = done.stdout.decode(errors="replace").strip()
        assert answer.startswith("{ok, "), (
            f"RabbitMQ expected to run {code!r}, got: {answer} {done.stderr.decode()}"
        )
        return answer[len("{ok, ") : -1]
