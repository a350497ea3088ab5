"""TLS, users with the least rights, and what outsiders may read: with real workers and commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from celery_fairness.errors import LimiterUnavailable
from tests.behaviour.conftest import PATHS
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.parts import parts_of
from tests.support.redis_server import RedisServer
from tests.support.rights import rights_of
from tests.support.waiting import eventually
from tests.transport.test_addresses import make_certificate

pytestmark = pytest.mark.redis

#: Commands of an operator. "42" is a tenant, and "api" a limit.
COMMANDS = (
    "status",
    "check",
    "events",
    "limit list",
    "limit show tenant:42",
    "limit override api --concurrency 3",
    "limit pause api",
    "limit resume api",
    "library",
    "queue list",
    "tenant show 42",
    "tenant pause 42",
    "tenant resume 42",
    "tenant tier 42 pro",
)
#: The same, on `fairredis` alone.
OF_CLAIMS = ("task dead", "queue show celery")
#: A password with characters that a URL needs in another form.
PASSWORD = "correct/horse@battery#staple"
FORMS = (PASSWORD, quote(PASSWORD, safe=""), "sentinel-secret", "horse")


def assert_no_secret(*texts: str) -> None:
    for text in texts:
        for form in FORMS:
            assert form not in text, text


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server whose users a test may change."""
    folder = tmp_path / "server"
    folder.mkdir()
    with RedisServer(directory=folder) as server:
        yield server


def at(path: str, url: str, **options: str) -> dict[str, Any]:
    """Return the options of a shop whose broker, or whose limits alone, are at `url`."""
    if path == "fairredis":
        conf = {"broker_use_ssl": options} if options else {}
        return {"conf": conf, "variables": {"CELERY_BROKER_URL": f"fair{url}"}}
    query = "?" + "&".join(f"{name}={value}" for name, value in options.items())
    return {"fairness": {"redis_url": url + query * bool(options), "tier_on_limit": "wait"}}


@pytest.mark.parametrize("path", PATHS)
def test_workers_and_commands_speak_tls_and_trust_only_their_authority(
    tls_server: tuple[int, Path], make_shop: Callable[..., Shop], tmp_path: Path, path: str
) -> None:
    port, authority = tls_server
    url = f"rediss://127.0.0.1:{port}/0"
    shop = make_shop(**at(path, url, ssl_ca_certs=str(authority), ssl_cert_reqs="required"))
    shop.worker(pool="threads", concurrency=2)
    results = [shop.send("work", user="42") for _ in range(3)]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.most_at_once("42") == 1
    assert shop.command("fairness", "status").returncode == 0
    (tmp_path / "other").mkdir()
    _, stranger = make_certificate(tmp_path / "other")
    other = make_shop(**at(path, url, ssl_ca_certs=str(stranger), ssl_cert_reqs="required"))
    rejected = other.command("fairness", "status")
    assert rejected.returncode == 69
    assert "certificate verify failed" in rejected.stderr
    assert "Traceback" not in rejected.stderr


@pytest.mark.parametrize("path", PATHS)
def test_the_listed_rights_of_a_worker_are_enough_for_operators_and_no_command_shows_a_secret(
    own_server: RedisServer, make_shop: Callable[..., Shop], path: str
) -> None:
    rights = rights_of("worker")
    if path == "fairredis":
        # The shop has queues beside celery, and the user names every queue.
        rights.append("~analysis_*")
    else:
        # The Redis is the limiter's alone.
        rights = [each for each in rights if each[0] != "~"] + ["~{fairness}:*"]
    with own_server.client(decode_responses=True) as client:
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", f">{PASSWORD}", *rights)
        shop = make_shop(**at(path, own_server.url.replace("://", f"://worker:{FORMS[1]}@")))
        worker = shop.worker(pool="threads", concurrency=2)
        gate = shop.gate_file()
        running = shop.send("work", user="42", gate=str(gate))
        behind = shop.send("work", user="42")
        eventually(lambda: shop.state("42").waiting_count == 1)
        for words in (*COMMANDS, *(OF_CLAIMS if path == "fairredis" else ())):
            done = shop.command("fairness", *words.split())
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
            assert_no_secret(done.stdout, done.stderr)
        gate.touch()
        for result in (running, behind):
            assert result.get(timeout=RESULT_SECONDS) == "done"
        assert client.execute_command("ACL", "LOG") == []
    assert "NOPERM" not in worker.log_text()


@pytest.mark.parametrize("path", PATHS)
def test_no_secret_is_in_a_log_a_repr_or_an_error(
    own_server: RedisServer, make_shop: Callable[..., Shop], path: str
) -> None:
    with own_server.client() as client:
        client.config_set("requirepass", PASSWORD)
    url = own_server.url.replace("://", f"://:{FORMS[1]}@")
    options = at(path, url)
    # No code needs it here, and much code prints it.
    given = {"sentinel_kwargs": {"password": "sentinel-secret"}}
    options["conf"] = {"broker_transport_options": given} if path == "fairredis" else {}
    shop = make_shop(**options)
    worker = shop.worker(pool="prefork", concurrency=1, args=["--loglevel", "DEBUG", "-E"])
    assert shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    failed = shop.send("work", "error", user="42")
    assert str(failed.get(RESULT_SECONDS, propagate=False)) == "as asked"
    printed = []
    for words in ("doctor", "doctor --json", "status --json"):
        done = shop.command("fairness", *words.split())
        assert done.returncode in (0, 1), f"{words}: {done.stdout}{done.stderr}"
        printed += [done.stdout, done.stderr]
    report = shop.command("report")
    conf = shop.ask(worker, "conf")
    assert "fairness" in report.stdout
    assert "fairness" in json.dumps(conf)
    fairness = shop.fairness
    parts = parts_of(fairness)
    reprs = [repr(each) for each in (fairness, fairness.settings, parts.address, parts.limiter)]
    reprs += [repr(vars(parts.limiter)), repr(vars(parts.limiter.connection)), str(vars(parts))]
    assert_no_secret(*printed, report.stdout, report.stderr, json.dumps(conf), *reprs)
    # The password is another one now, and then nobody answers.
    with own_server.client(password=PASSWORD) as client:
        client.config_set("requirepass", "changed")
        client.client_kill_filter(_type="normal", skipme=True)
    worker.wait_for_log("leases could not be renewed")
    wrong = shop.command("fairness", "status")
    with pytest.raises(LimiterUnavailable) as error:
        fairness.stats.status()
    own_server.kill()
    away = shop.command("fairness", "status")
    with pytest.raises(LimiterUnavailable) as gone:
        fairness.stats.status()
    assert (wrong.returncode, away.returncode) == (69, 69)
    texts = [wrong.stderr, away.stderr, worker.log_text()]
    for caught in (error, gone):
        texts += [str(caught.value), repr(caught.value), repr(caught.value.__cause__)]
    assert_no_secret(*texts)
