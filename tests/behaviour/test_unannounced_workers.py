"""A worker without this package beside one that has it: all that speaks of health names it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_fairness.cli.commands import fairness as group
from celery_fairness.control.installation.views import UnannouncedWorker, WorkerReplies
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.control_bus import answering
from tests.support.nodes import WorkerNode
from tests.support.waiting import eventually

BROKERS = ("fairredis", "redis", "rabbitmq")
#: A loaded machine may need longer than a second for the first reply. The next one takes 10 s.
SEEN_SECONDS = 3 * RESULT_SECONDS


def command(shop: Shop, *args: str) -> tuple[int, str]:
    context = CLIContext(app=shop.app, no_color=True, workdir=None)
    result = CliRunner().invoke(group, list(args), obj=context)
    return result.exit_code, " ".join(result.stdout.split())


def await_replies(shop: Shop, answered: int) -> WorkerReplies:
    """Return the replies of so many workers."""
    found: list[WorkerReplies] = []

    def seen() -> None:
        found.append(shop.fairness.stats.status().replies)
        assert (found[-1].problem, found[-1].answered) == ("", answered)

    eventually(seen, SEEN_SECONDS)
    return found[-1]


def plain_worker(shop: Shop, queue: str) -> WorkerNode:
    """Start a worker of an image that lacks the package: it has the stock transport."""
    env = {"CELERY_BROKER_URL": shop.env["CELERY_BROKER_URL"].removeprefix("fair")}
    return shop.worker(
        app="tests.support.plain_app", pool="threads", concurrency=1, queues=[queue], env=env
    )


@pytest.mark.parametrize("broker", BROKERS)
def test_a_worker_without_the_package_is_named_wherever_health_is_shown(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker)
    fair = shop.worker(pool="threads", concurrency=1)
    old, mail = plain_worker(shop, "celery"), plain_worker(shop, "mail")
    replies = await_replies(shop, answered=3)
    assert replies.unannounced == (
        UnannouncedWorker(old.hostname(), ("celery",), shares=True),
        UnannouncedWorker(mail.hostname(), ("mail",), shares=False),
    )
    sentence = f"1 worker answers and is not announced: {old.hostname()} (takes queue celery)"
    code, text = command(shop, "status")
    assert code == 0
    assert f"{sentence}; no limit of this installation holds for its tasks" in text
    assert "not the cause: all" not in text
    assert f"{mail.hostname()} (takes queue mail), of which none is known here" in text
    as_json = json.loads(command(shop, "status", "--json")[1])
    names = [each["name"] for each in as_json["replies"]["unannounced"]]
    assert names == [old.hostname(), mail.hostname()]
    code, text = command(shop, "doctor")
    assert code == 1
    assert f"PROBLEM unannounced: {sentence}" in text
    assert f"known here: {mail.hostname()} (takes queue mail)" in text
    code, text = command(shop, "top", "--once")
    assert text.startswith(sentence)
    assert f"{fair.hostname()} 0 1 on" in text
    assert f"{old.hostname()} not announced celery" in text
    metrics = {
        (family.metric.name, sample.labels): sample.value
        for family in shop.fairness.stats.metrics()
        for sample in family.samples
    }
    assert metrics["fairness_workers_answered", ()] == 3
    assert metrics["fairness_workers_unannounced", ("yes",)] == 1
    assert metrics["fairness_workers_unannounced", ("no",)] == 1


@pytest.mark.parametrize("broker", BROKERS)
def test_what_is_ruled_out_was_seen_and_has_its_time(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker)
    shop.worker(pool="threads", concurrency=1)
    replies = await_replies(shop, answered=1)
    text = command(shop, "status")[1]
    at = f"{replies.at:%H:%M:%S} UTC"
    assert f"the worker that answered at {at} is announced" in text
    assert f"1 worker answered Celery at {at}" in text
    assert "not checked" not in text


def test_a_worker_of_a_known_name_and_replies_of_any_shape_are_counted(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop("redis")
    fair = shop.worker(pool="threads", concurrency=1, queues=["celery"])
    twin = (fair.hostname(), [{"name": "other"}])
    shapes = [("text", "no list"), ("error", {"error": "x"}), ("odd", [1, {"name": "celery"}])]
    with answering(shop.app, twin, ("a\x1b[2J", [{"name": "\n"}]), *shapes):
        found = await_replies(shop, answered=6).unannounced
    assert {(each.name, each.queues, each.shares) for each in found} == {
        # Nobody can tell which of the two has which queues.
        (fair.hostname(), ("celery", "other"), True),
        ("a\x1b[2J", ("\n",), False),
        ("text", None, True),
        ("error", None, True),
        ("odd", ("celery",), True),
    }
    assert "\x1b" not in command(shop, "status")[1]
