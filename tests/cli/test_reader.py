"""Reads that must be of one moment, in bounded pieces, over a connection that may break."""

from __future__ import annotations

import pytest

from celery_fairness.control.installation.task_records import Row, TaskHead, read_head, read_row
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection


def test_reads_together_are_sent_again_after_a_lost_connection(connection, client):
    client.set("a", 1)
    assert connection.read_together([("GET", "a"), ("EXISTS", "b")]) == ["1", 0]
    client.client_kill_filter(_type="normal", skipme=True)
    assert connection.read_together([("GET", "a")]) == ["1"]


def test_reads_together_say_that_redis_is_away(redis_url):
    away = Connection(address_from_url("redis://127.0.0.1:1/0"))
    with pytest.raises(LimiterUnavailable, match=r"127\.0\.0\.1:1"):
        away.read_together([("GET", "a")])
    away.close()


def test_an_error_of_one_read_is_the_error_of_all(connection, client):
    client.set("a", 1)
    with pytest.raises(LimiterUnavailable, match="WRONGTYPE"):
        connection.read_together([("LLEN", "a"), ("GET", "a")])


HEAD = "7 1 0 1.5 9 42 analysis pro shop.work own:42|C1|wp,api|C2|w,tenant:42|C3|w 5+ - id-7 q 1"


def test_texts_are_read_as_the_functions_write_them():
    task = read_head("tag", HEAD)
    assert task == TaskHead(
        *("tag", 7, 1, 0, "42", "analysis", "pro", "shop.work"),
        *("own:42|C1|wp,api|C2|w,tenant:42|C3|w", "-", "id-7", "q 1", ""),
    )
    parked = read_head("tag", HEAD.replace("q 1", "@parked:broker q 1"))
    assert (parked.queue, parked.route, parked.is_parked) == ("@parked:broker", "q 1", True)
    assert task.key == "tenant:42:analysis"
    system = read_head("tag", f"7 0 0 1 9{' ' * 8} schlänge")
    assert (system.key, system.queue) == ("_system", "schlänge")
    row = read_row(
        "tag", "2.w1 owner claimed@5~40 tenant:42:analysis,api 1|1|2 shop.work id-7 ", HEAD
    )
    assert row == Row("owner", task, ("tenant:42:analysis", "api"), 5, 40)
    assert read_row("tag", "2.w1 owner acked _system    ", HEAD).since is None
    assert read_head("tag", "nonsense") is None
    assert read_head("tag", HEAD.replace("7", "x", 1)) is None
    assert read_row("tag", "nonsense", HEAD) is None
    assert read_row("tag", "2.w1 owner claimed _system   ", "nonsense") is None
