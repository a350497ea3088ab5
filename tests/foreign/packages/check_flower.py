"""flower: it starts with an address of ``fairredis``, and lists the workers and their tasks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from conftest import RESULT_SECONDS, working

from celery_fairness import FairTask
from celery_fairness.testing.child_process import dying_with_parent
from tests.support.waiting import eventually


@pytest.fixture
def start_flower():
    """``start_flower(app)``: run flower on a broker; returns a function that reads its API."""
    started = []

    def start(app):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ["flower", "--address=127.0.0.1", f"--port={port}"]
        argv = [sys.executable, "-m", "celery", "-A", "flower_app", *words]
        env = {
            **os.environ,
            "SEEN_BROKER": app.conf.broker_url,
            "SEEN_BACKEND": app.conf.result_backend,
            "FLOWER_UNAUTHENTICATED_API": "true",
        }
        started.append(
            subprocess.Popen(dying_with_parent(argv), env=env, cwd=Path(__file__).parent)
        )

        def read(what):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{what}") as answer:
                return json.load(answer)

        return read

    yield start
    for each in started:
        each.terminate()
        each.wait(20)


def test_it_lists_workers_and_tasks(make_app, path, start_flower) -> None:
    app = make_app(worker_send_task_events=True, task_send_sent_event=True)

    @app.task(base=FairTask, tenant="user", name="foreign.seen")
    def work(user=None):
        return user

    read = start_flower(app)

    def is_up():
        try:
            read("tasks")
        except OSError as error:
            raise AssertionError(str(error)) from None

    eventually(is_up, RESULT_SECONDS)
    with working(app, without_heartbeat=False, hostname="seen@test"):

        def is_seen():
            sent = work.delay("42")
            assert sent.get(timeout=RESULT_SECONDS) == "42"
            states = [each["state"] for each in read("tasks").values()]
            assert "SUCCESS" in states
            assert "seen@test" in read("workers?refresh=1")

        eventually(is_seen, RESULT_SECONDS)
