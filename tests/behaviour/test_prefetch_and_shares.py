"""``worker_prefetch_multiplier`` and worker shares: all tasks run, or the worker does not start."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.local_process import LocalProcess
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis

QUEUES = ("analysis_priority", "analysis_default", "analysis_scheduled")
START_SECONDS = at_most(30.0)
#: By form: the settings, and the variables.
FORMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "strict": ({}, {}),
    "borrow": ({"services": {"analysis": {"shares": "borrow"}}}, {}),
    "variables": (
        {"services": {"analysis": {"env_prefix": "AN"}}},
        {f"AN_QUEUE_{name}_WORKERS": "1" for name in ("PRIORITY", "DEFAULT", "SCHEDULED")},
    ),
}

Start = Callable[..., LocalProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the worker of the service; the options are those of ``celery worker``."""
    started: list[LocalProcess] = []

    def run(shop: Shop, *options: str) -> LocalProcess:
        words = ["-A", "tests.support.shop", "fairness", "worker", "analysis", "-l", "INFO"]
        argv = [sys.executable, "-m", "celery", *words, "-P", "threads", *options]
        argv += ["--without-mingle", "--without-gossip"]
        server = shop.fork_server("threads")
        started.append(LocalProcess("service", argv, env=shop.env, fork_server=server).start())
        return started[-1]

    yield run
    for process in started:
        if process.alive:
            # A worker that is killed settles none of the tasks that have just ended.
            code = process.stop(timeout_seconds=START_SECONDS)
            assert code == 0, process.log_text()
        process.discard_log()


def await_end(process: LocalProcess) -> tuple[int | None, str]:
    """Return the exit code and all that it printed."""
    eventually(lambda: not process.alive, START_SECONDS)
    return process.exit_code, process.log_text()


def all_run(shop: Shop) -> None:
    """Send two tasks to each queue, and wait for their results."""
    sent = [shop.send("work", options={"queue": queue}) for queue in QUEUES for _ in range(2)]
    assert [each.get(timeout=RESULT_SECONDS) for each in sent] == ["done"] * 6


@pytest.mark.parametrize("multiplier", [1, 2, 4, 64])
@pytest.mark.parametrize("form", FORMS)
def test_every_multiplier_with_every_form_of_shares(
    make_shop: Callable[..., Shop], start: Start, form: str, multiplier: int
) -> None:
    settings, variables = FORMS[form]
    conf = {"worker_prefetch_multiplier": multiplier}
    shop = make_shop("fairredis", conf=conf, fairness=settings, variables=variables)
    start(shop, *([] if form == "variables" else ["-c", "3"]))
    all_run(shop)


@pytest.mark.parametrize("multiplier", [0, 1, 2, 4, 64])
def test_every_multiplier_without_shares(make_shop: Callable[..., Shop], multiplier: int) -> None:
    shop = make_shop("fairredis", conf={"worker_prefetch_multiplier": multiplier})
    shop.worker(pool="threads", concurrency=3, queues=QUEUES)
    all_run(shop)


@pytest.mark.parametrize("form", FORMS)
def test_shares_and_a_prefetch_without_a_bound_do_not_start(
    make_shop: Callable[..., Shop], start: Start, form: str
) -> None:
    settings, variables = FORMS[form]
    conf = {"worker_prefetch_multiplier": 0}
    shop = make_shop("fairredis", conf=conf, fairness=settings, variables=variables)
    code, log = await_end(start(shop, "-c", "3"))
    assert code == 2
    assert (
        "worker_prefetch_multiplier: expected 1 or more beside worker shares, because 0 is a "
        "prefetch without a bound and no share would hold, got: 0; remove the setting, or start "
        "celery worker without shares"
    ) in " ".join(log.split())


def test_the_option_of_the_command_is_what_counts(
    make_shop: Callable[..., Shop], start: Start
) -> None:
    shop = make_shop("fairredis", conf={"worker_prefetch_multiplier": 0})
    start(shop, "-c", "3", "--prefetch-multiplier", "2")
    all_run(shop)


def test_a_worker_whose_prefetch_is_turned_off_has_shares(
    make_shop: Callable[..., Shop], start: Start
) -> None:
    conf = {"worker_prefetch_multiplier": 0, "worker_disable_prefetch": True}
    shop = make_shop("fairredis", conf=conf)
    start(shop, "-c", "3")
    all_run(shop)


def test_pools_of_other_brokers_prefetch_without_a_bound(
    make_shop: Callable[..., Shop], start: Start
) -> None:
    """There each queue has a pool of its own, which no prefetch makes larger."""
    shop = make_shop("redis", conf={"worker_prefetch_multiplier": 0})
    start(shop, "-c", "3")
    all_run(shop)
