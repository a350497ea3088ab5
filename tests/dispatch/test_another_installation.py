"""Tasks move from one installation to another while workers and producers of both run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from redis import Redis

from tests.integration.conftest import Shop
from tests.support.local_process import clean_environment
from tests.support.waiting import at_most, eventually

TASKS = 300


def test_every_task_runs_once_though_the_command_is_killed(
    make_fair_shop: Callable[..., Shop], memory: Redis, redis_url: str
) -> None:
    conf = {"task_ignore_result": True}
    fairness = {"tiers": "unlimited"}
    old = make_fair_shop(conf=conf, fairness=fairness)
    new = make_fair_shop(
        conf=conf,
        fairness={**fairness, "namespace": "new", "partitions": 4},
        variables={"SHOP_LEDGER": old.env["SHOP_LEDGER"]},
    )

    def send(shop: Shop, number: int) -> str:
        options = {"countdown": 1} if number % 5 == 0 else {}
        return str(shop.send("work", user=f"u{number % 20}", options=options).id)

    words = ["--from", f"fair{redis_url}", "--from-namespace", "fairness"]
    argv = [sys.executable, "-m", "celery", "-A", "tests.support.shop", "fairness"]
    sent = [send(old, number) for number in range(TASKS)]
    for _ in range(3):
        env = {**clean_environment(), **new.env}
        killed = subprocess.Popen([*argv, "queue", "migrate", *words, "--follow"], env=env)
        try:
            pages = len(memory.keys("{new#*}:last_answer:*"))
            eventually(
                lambda before=pages: len(memory.keys("{new#*}:last_answer:*")) > before,
                at_most(20),
            )
        finally:
            killed.kill()
            killed.wait()
        sent += [send(shop, number) for number in range(40) for shop in (old, new)]
    for shop in (old, new):
        shop.worker(concurrency=1)
    sent += [send(shop, number) for number in range(40) for shop in (old, new)]

    done = new.command("fairness", "queue", "migrate", *words)
    assert " moved from " in done.stdout, done.stderr
    eventually(lambda: len(old.runs()) == len(sent), at_most(60))

    def nothing_is_left() -> None:
        assert not memory.keys("{fairness}:last_answer:@page")
        assert not memory.exists("{fairness}:tasks", *memory.keys("{new#*}:tasks"))

    eventually(nothing_is_left)
    assert old.runs() == dict.fromkeys(sent, 1)
