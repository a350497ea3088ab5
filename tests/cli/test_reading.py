"""Reads that must be of one moment, in bounded pieces, over a connection that may break."""

from __future__ import annotations

import pytest

from celery_fairness.control import scan as reading
from celery_fairness.control.keys import Keys, read_record, read_row
from celery_fairness.control.scan import Reader
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


@pytest.mark.parametrize("length", [0, 1, 3, 7, 8])
def test_a_list_is_read_whole_from_its_end(connection, client, monkeypatch, length):
    monkeypatch.setattr(reading, "WALK_COUNT", 3)
    items = [str(number) for number in range(length)]
    if items:
        client.rpush("p:list", *items)
    reader = Reader(connection, Keys("p:"))
    assert list(reader.list_items("p:list")) == items[::-1]


def test_a_list_from_which_others_take_meanwhile_loses_nothing_that_stays(
    connection, client, monkeypatch
):
    monkeypatch.setattr(reading, "WALK_COUNT", 3)
    client.rpush("p:list", *range(12))
    seen = []
    for item in Reader(connection, Keys("p:")).list_items("p:list"):
        seen.append(item)
        if len(seen) in (3, 6):
            client.lpop("p:list", 2)
            client.rpush("p:list", "new")
    assert {str(number) for number in range(4, 12)} <= set(seen)


def test_texts_are_read_as_the_scripts_write_them():
    record = "7 tag 1 0 1 9 42 analysis pro shop.work   \n{} more\nlines"
    assert read_record(record) == (
        *("tag", "tenant:42:analysis", "shop.work", "9", "", 7, 1.0, ""),
    )
    assert read_record("7 tag 1 0 1 9       \n") == ("tag", "_system", "", "9", "", 7, 1.0, "")
    task = read_record("7 tag 1 0 1 9 42  pro  own:42|1|||wp,api|2|||w,tenant:42|3|||w  \n{}")
    assert task.kind == ""
    assert task.lane == "9,own:42|1|||wp,api|2|||w,tenant:42|3|||w"
    assert task.keys == ("tenant:42", "own:42", "api")
    queue = "schlänge 1"
    row = read_row(f"owner claimed {len(queue.encode())} {queue}{record}")
    assert (row.owner, row.state, row.queue, row.task.tag) == ("owner", "claimed", queue, "tag")
    assert read_record("nonsense") is None
    assert read_row("nonsense") is None
    assert read_row("owner claimed 3 abcnonsense") is None
