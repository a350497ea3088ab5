"""The example with an API that sells tokens: its budget is kept, and a flood delays nobody."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.copied import Copied
from tests.support.local_process import LocalProcess
from tests.support.nodes import WorkerNode
from tests.support.redis_server import HOST, ReservedPort
from tests.support.servers import listens
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis

#: The part of the load that is sent: 60, 22 and 6 prompts, of more tokens than one window has.
PART = "0.15"
PROMPTS = 88


@pytest.fixture
def shop(tmp_path: Path, redis_url: str) -> Iterator[Copied]:
    """The copy, with its API started by the command of the README."""
    port = ReservedPort()
    port.release()
    made = Copied(
        "llm_api",
        tmp_path,
        {
            "REDIS_URL": redis_url,
            "CELERY_BROKER_URL": f"fair{redis_url}",
            "API_URL": f"http://{HOST}:{port.number}",
        },
    )
    _, *words = shlex.split(made.command("python api.py"))
    command = [sys.executable, *words[:-1], str(port.number)]
    server = LocalProcess("api", command, env=made.variables, cwd=made.folder).start()
    eventually(lambda: listens(port.number), at_most(30))
    yield made
    server.stop()
    server.assert_gone()
    server.discard_log()


def calls(shop: Copied) -> list[dict[str, Any]]:
    """Return the calls that the API has answered."""
    path = shop.folder / "calls.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [call for call in found if call["code"] == 200]


def test_prompts_of_all_customers_end_within_the_budget_of_the_api(
    shop: Copied, start_worker: Callable[..., WorkerNode]
) -> None:
    shop.python(shop.command("python send.py"), PART)
    # All of them wait, so nobody's turn depends on how fast the sender is.
    start_worker("shop", concurrency=24, pool="threads", env=shop.variables)
    eventually(lambda: len(calls(shop)) == PROMPTS, at_most(90))
    last = {call["customer"]: call["at"] for call in calls(shop)}
    assert last["nora"] < last["fred"]
    shown = shop.python(shop.command("python show.py"))
    assert re.search(r"^fred +60 ", shown, re.MULTILINE), shown
    assert f" of {PROMPTS + int(shown.split(' of ')[0].split()[-1])} calls" in shown
    assert "</svg>" in (shop.folder / "tokens.svg").read_text()
