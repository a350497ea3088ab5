"""The compose file: by its schema, and its commands as processes of this machine."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from celery_fairness.testing.server import RedisServer
from tests.examples.copied import Copied, most_at_once
from tests.support.local_process import ROOT, LocalProcess
from tests.support.redis_server import HOST, ReservedPort
from tests.support.servers import NotInstalled, find_program, listens
from tests.support.services import missing
from tests.support.waiting import at_most, eventually

FOLDER = ROOT / "examples/compose"
FILE = FOLDER / "compose.yaml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())["services"]


def check_schema(file: Path) -> subprocess.CompletedProcess[str]:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema, str(file)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_file_has_the_form_of_a_compose_file(tmp_path: Path) -> None:
    done = check_schema(FILE)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text().replace("condition:", "conditon:"))
    assert "conditon" in check_schema(wrong).stdout


def test_every_file_and_volume_that_it_names_exists(services: dict[str, Any]) -> None:
    volumes = yaml.safe_load(FILE.read_text())["volumes"]
    named = [each.split(":") for one in services.values() for each in one.get("volumes", [])]
    assert len(named) == 6
    for source, target, *_ in named:
        assert source in volumes or (FOLDER / source).is_file(), source
        assert Path(target).is_absolute()
    copied = shlex.split((FOLDER / "Dockerfile").read_text().replace("\n", " ; "))
    assert {"shop.py", "send.py"} <= set(copied)


def test_only_one_service_has_a_port_and_it_is_for_this_machine(services: dict[str, Any]) -> None:
    ports = {name: one["ports"] for name, one in services.items() if "ports" in one}
    assert ports == {"grafana": ["127.0.0.1:3000:3000"]}


def test_prometheus_scrapes_the_exporter_and_grafana_finds_prometheus(
    services: dict[str, Any], tmp_path: Path
) -> None:
    try:
        promtool = find_program("promtool", "prometheus")
    except NotInstalled as error:
        missing(str(error))
    for volume in services["prometheus"]["volumes"]:
        source, target, _ = volume.split(":")
        shutil.copy(FOLDER / source, tmp_path / Path(target).name)
    command = [str(promtool), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    assert target == "exporter:9808"
    (source,) = yaml.safe_load((FOLDER / "grafana/datasources.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards.yml").read_text())["providers"]
    folders = {Path(each.split(":")[1]).parent for each in services["grafana"]["volumes"]}
    assert Path(provider["options"]["path"]) in folders


@pytest.fixture
def redis(services: dict[str, Any], tmp_path: Path) -> Iterator[RedisServer]:
    """A server with the arguments of the file."""
    name, *args = services["redis"]["command"]
    assert name == "redis-server"
    with RedisServer(directory=tmp_path, args=args) as server:
        yield server


@pytest.fixture
def run(redis: RedisServer, tmp_path: Path) -> Iterator[Callable[..., LocalProcess]]:
    """Start commands of the file in a copy of its folder."""
    copied = Copied("compose", tmp_path, {"CELERY_BROKER_URL": f"fair{redis.url}"})
    started: list[LocalProcess] = []

    def start(service: dict[str, Any], *more: str) -> LocalProcess:
        assert service["environment"] == {"CELERY_BROKER_URL": "fairredis://redis:6379/0"}
        words = [sys.executable, "-m", *service["command"], *more]
        started.append(
            LocalProcess("compose", words, env=copied.variables, cwd=copied.folder).start()
        )
        return started[-1]

    start.copied = copied  # type: ignore[attr-defined]
    yield start
    for process in started:
        process.kill()
        process.assert_gone()
        process.discard_log()


@pytest.mark.redis
def test_its_worker_and_exporter_run(services: dict[str, Any], run: Any) -> None:
    port = ReservedPort()
    port.release()
    worker = run(services["worker"])
    run(services["exporter"], "--port", str(port.number))
    run.copied.python("python send.py")
    eventually(lambda: "task 10 of fred begins" in worker.log_text(), at_most(30))
    log = worker.log_text()
    assert most_at_once(log, "fred".__eq__) == 2
    # Petra waits for her own tasks, and not for Fred's.
    assert log.index("task 0 of petra begins") < log.index("task 10 of fred begins")

    eventually(lambda: listens(port.number), at_most(30))
    with urlopen(f"http://{HOST}:{port.number}/metrics", timeout=at_most(10)) as answer:
        assert "fairness_up 1.0" in answer.read().decode()
