"""What a person sees at the first look: an idle status, a value that is printed, a wrong number."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from celery_fairness import Fairness
from tests.behaviour.conftest import Command
from tests.support.parts import parts_of
from tests.support.shop import make_app

pytestmark = pytest.mark.redis


@pytest.fixture
def fairness(redis_url: str) -> Iterator[Fairness]:
    made = Fairness.of(make_app({"CELERY_BROKER_URL": f"fair{redis_url}"}))
    yield made
    made.close()
    parts_of(made).app.close()


def test_an_idle_status_has_the_queues_that_workers_take(
    fairness: Fairness, command: Command
) -> None:
    services = {
        task.service
        for task in parts_of(fairness).app.tasks.values()
        if getattr(task, "service", "")
    }
    assert services
    expected = {
        f"{one}_{queue}" for one in services for queue in ("priority", "default", "scheduled")
    }
    assert expected <= {each.queue for each in fairness.stats.status().queues}
    shown = json.loads(command("status", "--json").stdout)
    assert expected <= {each["queue"] for each in shown["queues"]}


def test_a_key_that_is_printed_has_its_tier_its_limit_and_what_holds_it(fairness: Fairness) -> None:
    fairness.tenants.pause("42", by="ada")
    head, why, otherwise = str(fairness.limits.inspect("tenant:42")).splitlines()
    assert head == "tenant:42: tier free, held 0, waiting 0"
    assert why.startswith("limit 0: paused until it is resumed, by ada since ")
    assert otherwise == "otherwise 1: tier free"


@pytest.mark.parametrize(
    "args",
    [
        ("tenant", "tier", "42", "pro", "--concurrency"),
        ("limit", "override", "api", "--concurrency"),
        ("queue", "limit", "celery", "--global-limit"),
        ("queue", "limit", "celery", "--local-limit"),
    ],
)
@pytest.mark.parametrize("number", ["-1", "1000001", "1.5", "None", "many"])
def test_a_number_that_cannot_be_meant_names_the_word_that_can(
    command: Command, args: tuple[str, ...], number: str
) -> None:
    done = command(*args, number)
    assert done.exit_code == 2
    problem = " ".join(done.stderr.split())
    assert f"from 0 (pause) to 1000000, or 'unlimited', got: '{number}'" in problem
