"""A task is in one partition, whichever of its producers sends it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_fairness.config.key_templates import KeyTemplate, KeyValues
from celery_fairness.config.queue_policy import QueuePolicy, partition_key, queue_key
from celery_fairness.message.partition import partition_of


def body(customer_id: int, region: str | None = None) -> None:
    """What the task does."""


ALL = QueuePolicy(by_args=())


def of(knows: bool, *args: Any, **kwargs: Any) -> str:
    return partition_of(ALL, "q", "shop.pay", body if knows else None, args, kwargs)


def test_all_arguments_by_name_are_one_partition_whether_the_producer_knows_the_task_or_not():
    assert of(True, customer_id=7, region="eu") == of(False, region="eu", customer_id=7)
    assert of(True, customer_id=7, region="eu") != of(False, customer_id=8, region="eu")


def test_of_a_producer_that_does_not_know_the_task_positions_are_what_it_says():
    assert of(False, 7) == of(False, 7) != of(False, 8)
    assert of(False, 7) != of(False, customer_id=7)


@pytest.mark.parametrize("queue", ["emails", "a:b", "h_1", "büro", "x" * 200])
def test_a_key_that_is_made_from_a_queue_is_that_of_the_queue_s_limit(queue):
    made, _ = KeyTemplate("queue:{queue}").resolve(KeyValues("shop.pay", queue=queue))
    assert made == queue_key(queue)


def test_a_queue_with_a_colon_is_no_partition_of_another():
    made, _ = KeyTemplate("queue:{queue}").resolve(KeyValues("shop.pay", queue="a:b"))
    assert made != partition_key("a", ["b"])
