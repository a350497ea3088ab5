"""Ids and names with escapes and line ends, in the log of a worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.dispatch.conftest import send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

FORGED = "[2026-01-01 00:00:00,000: CRITICAL/MainProcess] forged"
ID = f"red\x1b[31m\n{FORGED}"
UNKNOWN = f"no.such\x1b[2J\r\n{FORGED}"


@pytest.mark.parametrize("broker", ["fairredis", "redis"])
def test_a_worker_logs_ids_and_names_as_one_line(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker)
    worker = shop.worker(app="tests.dispatch.kinds", concurrency=1)
    gate = shop.gate_file()
    gate.touch()
    result = send(shop, "kinds.plain", "42\x1b[31m", gate=str(gate), options={"task_id": ID})
    send(shop, UNKNOWN, "42", options={"task_id": f"{ID}2"})
    assert result.get(timeout=RESULT_SECONDS) == "done"

    def both_are_logged() -> None:
        log = worker.log_text()
        assert "kinds.plain[red\\x1b[31m\\n[2026" in log
        assert "succeeded in" in log
        assert "no.such\\x1b[2J" in log

    eventually(both_are_logged)
    log = worker.log_text()
    assert "\x1b" not in log
    assert "\r" not in log
    assert not any(line.startswith(FORGED) for line in log.splitlines())
