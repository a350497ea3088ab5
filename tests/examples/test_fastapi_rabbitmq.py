"""The service on FastAPI: its worker behind the gate, on RabbitMQ and Redis."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.examples.copied import Copied, ended, most_at_once
from tests.support.local_process import LocalProcess
from tests.support.nodes import WorkerNode
from tests.support.redis_server import HOST, ReservedPort
from tests.support.servers import listens
from tests.support.waiting import at_most, eventually

pytestmark = [pytest.mark.redis, pytest.mark.rabbitmq]


@pytest.fixture
def service(tmp_path: Path, redis_url: str, rabbit_url: str) -> Copied:
    addresses = {
        "CELERY_BROKER_URL": rabbit_url,
        "CELERY_RESULT_BACKEND": redis_url,
        "FAIRNESS_REDIS_URL": redis_url,
    }
    return Copied("fastapi_rabbitmq", tmp_path, addresses)


@pytest.fixture
def ask(service: Copied) -> Iterator[Callable[..., Any]]:
    """Start the server by the command of the README, and return a function that sends a request."""
    port = ReservedPort()
    port.release()
    command = re.sub(r"--port \d+", f"--port {port.number}", service.command("uvicorn "))
    words = [sys.executable, "-m", *shlex.split(command)]
    server = LocalProcess("uvicorn", words, env=service.variables, cwd=service.folder).start()
    eventually(lambda: listens(port.number), at_most(30))

    def send(path: str, account: str = "", body: dict[str, str] | None = None) -> Any:
        headers = {
            "Content-Type": "application/json",
            **({"X-Account": account} if account else {}),
        }
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://{HOST}:{port.number}{path}", data, headers)
        with urlopen(request, timeout=at_most(10)) as answer:
            return json.load(answer)

    yield send
    server.stop()
    server.assert_gone()
    server.discard_log()


def test_reports_of_an_account_run_by_its_plan_and_the_service_shows_them(
    service: Copied, ask: Callable[..., Any], start_worker: Callable[..., WorkerNode]
) -> None:
    worker = start_worker("shop", concurrency=4, env=service.variables)
    ids = {
        account: [ask("/reports", account, {"name": name})["id"] for name in "abc"]
        for account in ("fred", "petra")
    }
    assert ask("/account", "petra")["tier"] == "pro"
    seen = ask("/account", "fred")
    assert (seen["tier"], seen["running"] <= 1) == ("free", True)

    eventually(lambda: ended(worker.log_text()) == 6, at_most(40))
    log = worker.log_text()
    assert most_at_once(log, "fred".__eq__) == 1
    # All three, unless the first ends before the last is sent.
    assert 1 < most_at_once(log, "petra".__eq__) <= 3
    look = f"/reports/{ids['fred'][0]}"
    made = {"state": "SUCCESS", "text": "a: all is well"}
    eventually(lambda: ask(look, "fred") == made)
    for account, path, status in (("petra", look, 404), ("", look, 422), ("a b", "/account", 422)):
        with pytest.raises(HTTPError) as caught:
            ask(path, account)
        assert caught.value.code == status
        caught.value.close()
