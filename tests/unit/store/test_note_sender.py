"""Calls that get no answers: they reach Redis, whatever the server, the user or the thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.store import note_sender
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.store.note_sender import NoteSender
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

PREFIX = "{notes}:"


@pytest.fixture
def server(redis_server, redis_url):
    client = redis_server.client(decode_responses=True)
    yield SimpleNamespace(client=client, url=redis_url)
    client.close()


@pytest.fixture
def make_sender():
    connections = []

    def make(url):
        connections.append(Connection(address_from_url(url), timeout_seconds=0.5))
        return NoteSender(connections[-1])

    yield make
    for each in connections:
        each.close()


def send(sender, tenant):
    """Send a call whose effect can be read."""
    sender.send(calls.PUBLISH_TENANT, PREFIX, calls.tenant_args(f"tenant:{tenant}", "free"))


def await_notes(server, tenants):
    """Wait until Redis has the notes of all tenants."""
    keys = [f"{PREFIX}tenant:{tenant}" for tenant in tenants]
    eventually(lambda: server.client.exists(*keys) == len(keys))


def test_calls_that_follow_each_other_get_no_answer(server, make_sender):
    sender = make_sender(server.url)
    for tenant in range(50):
        send(sender, tenant)
    await_notes(server, range(50))
    line = sender._own.line
    assert not line.connection.can_read(0)


def test_threads_that_send_at_once_lose_no_call(server, make_sender):
    sender = make_sender(server.url)
    begin = threading.Barrier(8)

    def run(thread):
        begin.wait()
        for number in range(50):
            send(sender, f"{thread}.{number}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    await_notes(server, [f"{thread}.{number}" for thread in range(8) for number in range(50)])


@pytest.mark.parametrize("trouble", ["killed", "no library"])
def test_an_idle_connection_is_asked_for_an_answer(server, make_sender, monkeypatch, trouble):
    monkeypatch.setattr(note_sender, "TRUST_SECONDS", 0.0)
    sender = make_sender(server.url)
    send(sender, "before")
    if trouble == "killed":
        server.client.client_kill_filter(_type="normal", skipme=True)
    else:
        server.client.function_flush()
    send(sender, "after")
    # No wait: the call returned after its answer.
    assert server.client.exists(f"{PREFIX}tenant:before", f"{PREFIX}tenant:after") == 2


def test_a_user_who_may_not_leave_out_answers_gets_them(server, make_sender):
    rights = ["+@all", "-client|reply"]
    server.client.acl_setuser("plain", enabled=True, passwords=["+pw"], keys="*", commands=rights)
    try:
        parts = urlsplit(server.url)
        sender = make_sender(f"redis://plain:pw@{parts.hostname}:{parts.port}{parts.path}")
        for tenant in range(5):
            send(sender, tenant)
        await_notes(server, range(5))
        assert sender._own.line.is_refused
    finally:
        server.client.acl_deluser("plain")


def test_a_server_that_does_not_answer_holds_up_one_call_and_not_each(
    server, make_sender, redis_server, monkeypatch
):
    monkeypatch.setattr(note_sender, "TRUST_SECONDS", 0.0)
    proxy = Proxy(urlsplit(server.url).port).start()
    try:
        sender = make_sender(proxy.url(server.url))
        send(sender, "before")
        proxy.refuse()
        for tenant in range(100):
            send(sender, tenant)
        assert sender._own.line.not_before > 0
        assert not server.client.exists(f"{PREFIX}tenant:0")
    finally:
        proxy.stop()
