"""``celery fairness exporter`` as a process: scrapes, an outage of Redis, and its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed

from celery_fairness import SettingsError, exporter
from celery_fairness.control.health import metric_table as table
from celery_fairness.control.health.metrics import Family, Sample
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.exporter.collector import Exposition, FairnessCollector
from celery_fairness.exporter.scrape import Scraper
from celery_fairness.exporter.server import MetricsServer
from tests.support.waiting import at_most, eventually

HOSTILE = 'a"b\nc\\d'


@pytest.fixture
def start(redis_url):
    """Start the command, by default on a free port; return the process and its address."""
    running = []

    def begin(*options, broker=""):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-q", "-A", "tests.support.shop"),
                *("fairness", "exporter", *(options or ("--port", "0"))),
            ],
            env={**os.environ, "CELERY_BROKER_URL": broker or f"fair{redis_url}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process, process.stdout.readline().strip()

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def get(url, accept="*/*"):
    question = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(question, timeout=at_most(60)) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def rejected(url):
    with pytest.raises(urllib.error.HTTPError) as error:
        get(url)
    with error.value as answer:
        return answer.code, answer.read().decode()


def values(text):
    """Return the samples by name and labels."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parsed(text)
        for sample in family.samples
    }


def test_a_scrape_an_outage_and_the_end(start, installation, redis_server):
    installation.put("new", "hostile", queue=HOSTILE, tier="free")
    process, url = start()
    assert url.startswith("http://127.0.0.1:")
    content_type, text = get(url)
    assert content_type.startswith("text/plain")
    found = values(text)
    assert found["fairness_up",] == 1
    assert found["fairness_tasks_startable", HOSTILE] == 1
    assert found["fairness_scrape_age_seconds",] >= 0

    redis_server.kill()
    found = values(get(url)[1])
    assert set(found) == {("fairness_up",), ("fairness_scrape_age_seconds",)}
    assert found["fairness_up",] == 0
    status, body = rejected(url.replace("/metrics", "/autoscale"))
    assert status == 503
    assert "error" in json.loads(body)
    redis_server.restart()
    eventually(lambda: values(get(url)[1])["fairness_up",] == 1)

    process.send_signal(signal.SIGTERM)
    assert process.wait(at_most(30)) == 0
    out, errors = process.communicate()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith("a scrape could not read Redis: the broker's Redis at ")


def test_an_interrupt_ends_it_and_redis_may_be_away_at_its_start(start):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        process, url = start(broker=f"fairredis://127.0.0.1:{reserved.getsockname()[1]}/0")
        assert values(get(url)[1]) == {("fairness_up",): 0}
    process.send_signal(signal.SIGINT)
    assert process.wait(at_most(30)) == 0


def test_a_taken_port_is_one_clear_line(start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process, _ = start("--port", str(port))
        assert process.wait(at_most(30)) == 2
    assert process.stderr.read() == (
        f"celery fairness: 127.0.0.1 port {port}: Address already in use\n"
    )


@pytest.fixture
def serve(fairness):
    server = MetricsServer(Exposition(fairness), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.url
    server.shutdown()
    thread.join()
    server.server_close()


def test_openmetrics_by_negotiation(serve, installation):
    content_type, text = get(f"{serve}/metrics", "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert {each.name for each in openmetrics(text)} >= {"fairness_up", "fairness_starts"}


def test_the_load_of_one_queue_and_of_all(serve, installation, client):
    client.flushdb()
    for tenant in ("42", "43"):
        installation.put(tenant, tenant, tier="free", queue="a b&c")
    one = json.loads(get(f"{serve}/autoscale?queue=a%20b%26c")[1])
    assert one == {
        "queue": "a b&c",
        "startable": 2,
        "running": 0,
        "tasks": 2,
        "places": 0,
        "load": 2.0,
        "is_estimated": False,
    }
    assert one in json.loads(get(f"{serve}/autoscale")[1])["queues"]


def test_another_path_is_not_found(serve):
    assert rejected(f"{serve}/other")[0] == 404


@pytest.mark.parametrize("target", ["http://[/metrics", "/autoscale?queue=%ff%00", "http://a]b/"])
def test_any_address_has_an_answer(serve, capsys, target):
    host, _, port = serve.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=at_most(60)) as connection:
        connection.sendall(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        status = connection.makefile("rb").readline().split()[1]
    assert status in (b"200", b"400")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_client_that_goes_away_leaves_no_traceback(fairness, capsys, is_reset):
    """As a scrape that was given up, and as the probe of a load balancer."""
    server = MetricsServer(Exposition(fairness), "127.0.0.1", 0)
    if is_reset:
        client = socket.create_connection(server.server_address)
        accepted, _ = server.get_request()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    else:
        accepted, client = socket.socketpair()
        client.sendall(b"GET /other HTTP/1.0\r\n\r\n")
    client.close()
    server.process_request_thread(accepted, ("127.0.0.1", 1))
    server.server_close()
    assert capsys.readouterr().err == ""


def test_an_error_of_the_server_itself_has_a_traceback(capsys):
    server = MetricsServer(None, "127.0.0.1", 0)
    accepted, client = socket.socketpair()
    client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    server.process_request_thread(accepted, ("127.0.0.1", 1))
    client.close()
    server.server_close()
    assert "AttributeError" in capsys.readouterr().err


def test_every_sample_of_every_metric_can_be_parsed(serve, installation, fairness):
    samples = values(get(f"{serve}/metrics")[1])
    for family in fairness.stats.metrics():
        suffix = {"counter": "_total", "histogram": "_count"}.get(family.metric.kind, "")
        for sample in family.samples:
            labels = sorted(zip(family.metric.labels, sample.labels, strict=True))
            name = (family.metric.name + suffix, *(value for _, value in labels))
            assert name in samples


def test_the_age_grows_while_redis_is_away():
    times = iter((5.0, 6.0, 20.0))
    answers = iter(((Family(metric=table.JAIN, samples=(Sample((), 1.0),)),), None))

    def read():
        answer = next(answers)
        if answer is None:
            raise LimiterUnavailable("redis://x", "gone")
        return answer

    collector = FairnessCollector(Scraper(read, lambda: next(times)))
    assert [each.name for each in collector.collect()] == [
        "fairness_up",
        "fairness_scrape_age_seconds",
        "fairness_jain_index",
    ]
    up, age = collector.collect()
    assert up.samples[0].value == 0
    assert age.samples[0].value == 15


def test_without_the_client_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(exporter, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install 'prometheus-client[<>=\d.,]+'$"):
        exporter.expect_client()
