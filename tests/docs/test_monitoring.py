"""The dashboard, the alerts and the examples for autoscalers against the table of metrics."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import yaml

from celery_fairness.config.settings import Enforcement
from celery_fairness.control.health.metric_table import METRICS, Metric
from celery_fairness.control.health.metrics import OTHER, PARKED, QueueLoad
from tests.docs.test_docs import COMMANDS, ROOT, anchors, blocks
from tests.support.servers import NotInstalled, find_program
from tests.support.services import missing

FOLDER = ROOT / "docs/monitoring"
ALERTS, ALERT_TESTS = FOLDER / "alerts.yml", FOLDER / "alerts.test.yml"
DASHBOARD = FOLDER / "grafana.json"
METRICS_PAGE = ROOT / "docs/reference/metrics.md"
AUTOSCALE = ROOT / "docs/how-to/autoscale.md"
HOW_TO = ROOT / "docs/how-to/metrics.md"

BY_NAME = {each.name: each for each in METRICS}
#: The ends of the names of a metric's samples.
ENDS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
#: Each name that Prometheus has, with its metric.
SERIES = {each.name + end: each for each in METRICS for end in ENDS[each.kind]}
#: Labels that Prometheus adds, and the one of a bucket.
ADDED = {"job", "instance"}

NAME = re.compile(r"\b((?:fairness|ojs_rate_limit)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")
GROUPED = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")


def labels_of(series: str, metric: Metric) -> set[str]:
    return {*metric.labels, *ADDED, *(["le"] if series.endswith("_bucket") else [])}


def reasons() -> set[str]:
    """The reasons for which a task waits, as the page of the metrics lists them."""
    text = METRICS_PAGE.read_text().partition("## Reasons")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


VALUES = {
    "behind": {"own", "none"},
    "enforcement": {each.value for each in Enforcement},
    "path": {"dispatch", "gate"},
    "reason": reasons(),
}


def problems(query: str, legend: str = "") -> list[str]:
    """Return what a query names that no metric of the table has."""
    found, all_labels = [], set()
    names = NAME.findall(query)
    if not names:
        found.append(f"no metric in {query}")
    for name, matchers in names:
        if name not in SERIES:
            found.append(f"metric {name}")
            continue
        known = labels_of(name, SERIES[name])
        all_labels |= known
        for label, value in MATCHER.findall(matchers):
            if label not in known:
                found.append(f"label {label} of {name}")
            elif value not in VALUES.get(label, {value}):
                found.append(f"value {value} of {label}")
    grouped = {label for part in GROUPED.findall(query) for label in re.findall(r"\w+", part)}
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    found += [f"label {label} of no metric" for label in sorted((grouped | shown) - all_labels)]
    return found


def dashboard() -> dict[str, Any]:
    value = json.loads(DASHBOARD.read_text())
    assert isinstance(value, dict)
    return value


def panels() -> list[dict[str, Any]]:
    return [each for each in dashboard()["panels"] if each["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


def examples() -> list[dict[str, Any]]:
    """The examples of the page on autoscalers."""
    return [yaml.safe_load(text) for text in blocks(AUTOSCALE, "yaml")]


def triggers(kind: str) -> list[dict[str, str]]:
    found = [each for each in examples() if each.get("kind") == "ScaledObject"]
    return [
        trigger["metadata"]
        for each in found
        for trigger in each["spec"]["triggers"]
        if trigger["type"] == kind
    ]


def adapter_rule() -> dict[str, Any]:
    (rule,) = [
        each for example in examples() for each in example.get("rules", {}).get("external", [])
    ]
    return dict(rule)


def queries() -> Iterator[str]:
    """Yield every query of the dashboard and of the page on autoscalers, as Prometheus gets it."""
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "5m")
            yield re.sub(r"\$\w+", "x", text)
    for trigger in triggers("prometheus"):
        yield trigger["query"]
    yield adapter_rule()["metricsQuery"].replace("<<.LabelMatchers>>", 'queue="x"')


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('sum by (queue) (fairness_tasks_running{tier="free"})', []),
        ('rate(fairness_wait_seconds_bucket{le="1", behind="own"}[5m])', []),
        ("fairness_tasks_runing", ["metric fairness_tasks_runing"]),
        # A counter and a histogram have no sample of that name.
        ("fairness_starts", ["metric fairness_starts"]),
        ("fairness_wait_seconds", ["metric fairness_wait_seconds"]),
        ("fairness_up_total", ["metric fairness_up_total"]),
        ('fairness_up{queue="a"}', ["label queue of fairness_up"]),
        ("sum by (tenant) (fairness_tasks_running)", ["label tenant of no metric"]),
        ('fairness_workers{enforcement!="yes"}', ["value yes of enforcement"]),
        ('fairness_tasks_waiting{reason="slow"}', ["value slow of reason"]),
        ("vector(1)", ["no metric in vector(1)"]),
    ],
)
def test_a_wrong_name_in_a_query_is_found(query, expected):
    assert problems(query) == expected


@pytest.mark.parametrize("panel", panels(), ids=lambda each: each["title"])
def test_a_panel_shows_metrics_of_the_table(panel):
    for target in panel["targets"]:
        assert problems(target["expr"], target["legendFormat"]) == []


def test_the_dashboard_shows_every_metric_of_its_own():
    """Those of tenants exist only on request, and those of the Open Job Spec repeat others."""
    shown = {
        SERIES[name].name
        for panel in panels()
        for target in panel["targets"]
        for name, _ in NAME.findall(target["expr"])
    }
    repeated = ("fairness_tenant_", "ojs_rate_limit_")
    assert {name for name in BY_NAME if not name.startswith(repeated)} == shown


def test_the_dashboard_has_what_grafana_asks_for():
    found = dashboard()
    # Grafana gives an imported dashboard its own id.
    assert "id" not in found
    assert re.fullmatch(r"[\w-]{8,40}", found["uid"])
    assert (found["title"], found["schemaVersion"]) == ("Celery fairness", 39)
    assert {"from", "to"} == set(found["time"])
    assert found["annotations"] == {"list": []}
    ids = [each["id"] for each in found["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in found["panels"]:
        assert panel["title"]
        position = panel["gridPos"]
        assert position["w"] > 0
        assert position["h"] > 0
        assert 0 <= position["x"] <= 24 - position["w"]
    for panel in panels():
        assert panel["type"] in ("stat", "timeseries", "heatmap")
        assert panel["description"].endswith(".")
        assert {"defaults", "overrides"} == set(panel["fieldConfig"])
        assert panel["targets"]
        refs = [each["refId"] for each in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for of in (panel, *panel["targets"]):
            assert of["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    return {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}


def test_no_panel_of_the_dashboard_covers_another():
    for one, other in combinations(dashboard()["panels"], 2):
        assert not cells(one) & cells(other), f"{one['title']} and {other['title']}"


def test_each_variable_of_the_dashboard_is_used_and_defined():
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "queue"]
    assert variables["datasource"]["query"] == "prometheus"
    for name in ("job", "queue"):
        query = variables[name]["query"]["query"]
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert match
        assert match[2] == name
        assert problems(f"sum by ({name}) ({match[1]})") == []
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels())))
    assert used - {"__rate_interval"} == set(variables)


def test_every_panel_whose_metric_has_a_queue_follows_the_variable():
    for panel in panels():
        for target in panel["targets"]:
            for name, matchers in NAME.findall(target["expr"]):
                assert 'job=~"$job"' in matchers
                if "queue" in SERIES[name].labels:
                    assert 'queue=~"$queue"' in matchers, panel["title"]


@pytest.mark.parametrize("rule", rules(), ids=lambda each: each["alert"])
def test_an_alert_asks_for_metrics_of_the_table_and_names_the_next_step(rule):
    notes = rule["annotations"]
    assert problems(rule["expr"], " ".join(notes.values())) == []
    assert set(rule["labels"].values()) == {"critical"}
    assert re.fullmatch(r"\d+m", rule["for"])
    assert set(notes) == {"summary", "description"}
    assert COMMANDS.search(notes["description"])
    page, _, anchor = re.findall(r"(docs/[\w./-]+\.md)(#?)([\w-]*)", notes["description"])[-1]
    assert (ROOT / page).exists()
    assert not anchor or anchor in anchors(ROOT / page)
    assert f"`{rule['alert']}`" in HOW_TO.read_text()


def test_the_labels_of_several_queues_in_the_alerts_are_those_of_the_metrics():
    assert set(re.findall(r'queue[!=~]+"[^"]+"', ALERTS.read_text())) == {
        f'queue!="{PARKED}"',
        f'queue!="{OTHER}"',
        f'queue=~"{PARKED}|{OTHER}"',
    }


def test_each_alert_has_a_test_where_it_fires_and_one_where_it_does_not():
    fires, silent = set(), set()
    for scene in yaml.safe_load(ALERT_TESTS.read_text())["tests"]:
        for series in scene["input_series"]:
            assert problems(series["series"]) == []
        for each in scene["promql_expr_test"]:
            (name,) = re.findall(r'alertname="(\w+)"', each["expr"])
            (fires if each.get("exp_samples") else silent).add(name)
    names = {each["alert"] for each in rules()}
    assert fires == silent == names


@pytest.fixture(scope="module")
def promtool() -> str:
    try:
        return str(find_program("promtool", "prometheus"))
    except NotInstalled as error:
        missing(str(error))


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_alerts(promtool):
    run(promtool, "check", "rules", str(ALERTS))


def test_promtool_runs_the_tests_of_the_alerts(promtool):
    run(promtool, "test", "rules", str(ALERT_TESTS))


def test_promtool_accepts_every_query(promtool, tmp_path):
    records = [
        {"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())
    ]
    assert len(records) > len(panels())
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))
    run(promtool, "check", "rules", str(file))


def test_the_configuration_of_prometheus_names_the_file_of_the_alerts():
    configured = [yaml.safe_load(text) for text in blocks(HOW_TO, "yaml")]
    assert {"rule_files": [ALERTS.name]} in configured


def test_the_examples_for_autoscalers_ask_for_what_the_exporter_has():
    (asked,) = triggers("metrics-api")
    assert re.search(r"/autoscale\?queue=\w+$", asked["url"])
    names = list(QueueLoad.model_fields)
    assert asked["valueLocation"] in names
    (shown,) = blocks(AUTOSCALE, "json")
    assert list(json.loads(shown)) == names
    (counted,) = triggers("prometheus")
    assert problems(counted["query"]) == []
    rule = adapter_rule()
    assert problems(rule["seriesQuery"].replace("__name__", "")) == []
    assert problems(rule["metricsQuery"].replace("<<.LabelMatchers>>", "")) == []


def test_the_examples_for_autoscalers_agree():
    """Each scales the same workers, with the places of one as the target."""
    (asked,), (counted,) = triggers("metrics-api"), triggers("prometheus")
    (hpa,) = [each for each in examples() if each.get("kind") == "HorizontalPodAutoscaler"]
    (metric,) = hpa["spec"]["metrics"]
    external = metric["external"]
    targets = {asked["targetValue"], counted["threshold"], external["target"]["averageValue"]}
    assert targets == {"8"}
    assert "`--concurrency 8`" in AUTOSCALE.read_text()
    assert external["metric"]["name"] == adapter_rule()["name"]["as"]
    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in examples() if "spec" in each}
    assert scaled == {"emails"}
    # KEDA reads a number that it gets as text.
    assert all(isinstance(value, str) for value in (*asked.values(), *counted.values()))
