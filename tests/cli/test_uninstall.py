"""``uninstall``: what it deletes, what it leaves, and what keeps it from deleting."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Installation

#: Keys of Celery, of kombu and of other installations; some names only begin alike.
OF_OTHERS = (
    *("celery", "_kombu.binding.celery", "celery-task-meta-1", "unacked"),
    *(
        "{fairness}",
        "{fairness}x:clock",
        "{fairness2}:clock",
        "fairness:clock",
        "x{fairness}:clock",
    ),
)


@pytest.fixture
def shop(installation, client):
    """An installation without tasks or workers, and keys of others."""
    client.flushdb()
    for name in OF_OTHERS:
        client.rpush(name, "x")
    return installation


def names(client) -> set[str]:
    return set(client.keys("*"))


def test_all_keys_of_the_prefix_go_and_no_other(run, shop, client):
    shop.fill()
    shop.run_all()
    client.delete(shop.key("tasks"))
    left = len(names(client)) - len(OF_OTHERS)
    assert left > 10
    shown = run("uninstall")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert f": {left} keys, 0 tasks\n" in shown.output
    assert len(names(client)) == left + len(OF_OTHERS)
    done = run("uninstall", "--yes")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.output.endswith(f": {left} keys deleted\n")
    assert names(client) == set(OF_OTHERS)
    assert run("uninstall", "--yes").output.endswith(": 0 keys deleted\n")
    assert names(client) == set(OF_OTHERS)


def test_tasks_are_deleted_only_on_request(run, shop, client):
    shop.fill()
    before = names(client)
    done = run("uninstall", "--yes")
    assert done.exit_code == 1
    assert "to delete them too: --with-tasks\nnothing is deleted\n" in done.output
    assert names(client) == before
    assert run("uninstall", "--with-tasks").exit_code == 0
    assert names(client) == before
    assert run("uninstall", "--yes", "--with-tasks").exit_code == 0
    assert names(client) == set(OF_OTHERS)


def test_nothing_is_deleted_while_a_worker_is_announced(run, shop, client):
    shop.announce()
    before = names(client)
    done = run("uninstall", "--yes", "--with-tasks", "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["deleted"], answer["workers"]) == (1, False, ["celery@web"])
    assert names(client) == before
    shown = run("uninstall", "--yes").output
    assert "worker celery@web is announced: stop it\n" in shown


def test_many_keys_are_deleted_in_steps(run, shop, client):
    with client.pipeline() as pipe:
        for number in range(3_000):
            pipe.set(shop.key(f"tenant:{number}"), 1)
        pipe.execute()
    assert run("uninstall", "--yes").output.endswith(": 3000 keys deleted\n")
    assert names(client) == set(OF_OTHERS)


def test_another_namespace_is_another_installation(run, shop, client):
    other = Installation(client, "{other}:")
    other.put("42", "t1")
    shop.put("42", "t1")
    assert run("uninstall", "--yes", "--with-tasks").exit_code == 0
    assert {each for each in names(client) if each.startswith("{fairness}:")} == set()
    assert client.hlen("{other}:tasks") == 1
