"""OpenTelemetry with its own SDK: the instruments of an installation, and the spans of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_fairness import RateLimitPolicy
from celery_fairness.control.health import metric_table as table
from celery_fairness.exporter.otel import annotate_spans, observe_metrics
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.thread_worker.conftest import Yard
from tests.transport.conftest import empty_sessions

__all__ = ["empty_sessions"]

claimed = pytest.mark.parametrize("yard", ["fairredis"], indirect=True)

Points = dict[str, dict[tuple[tuple[str, Any], ...], float]]


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    made = InMemoryMetricReader()
    provider = MeterProvider([made])
    made.provider = provider
    yield made
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> Points:
    """Collect once, and return the value of each point by metric and attributes."""
    data = reader.get_metrics_data()
    return {
        metric.name: {
            tuple(sorted((point.attributes or {}).items())): point.value
            for point in metric.data.data_points
        }
        for of in data.resource_metrics
        for scope in of.scope_metrics
        for metric in scope.metrics
    }


def test_the_instruments_are_the_metrics_of_the_table(
    yard: Yard, reader: Any, caplog: pytest.LogCaptureFixture
) -> None:
    eventually(yard.work.delay("42").ready)
    observe_metrics(yard.app, reader.provider)
    found = points(reader)
    for family in yard.fairness.stats.metrics():
        metric = family.metric
        if metric in (table.LIBRARY_CALLS, table.MEMORY_USED) or not family.samples:
            continue
        end = "_sum" if metric.kind == "histogram" else ""
        for sample in family.samples:
            labels = dict(zip(metric.labels, sample.labels, strict=True))
            at = tuple(sorted(labels.items()))
            if math.isinf(sample.value):
                # Without a maximum the point is missing, and the SDK has no reason to warn.
                assert at not in found.get(metric.name, {})
                continue
            assert found[metric.name + end][at] == sample.value, metric.name
            if metric.kind == "histogram":
                assert found[f"{metric.name}_count"][at] == sample.buckets[-1][1]
                for bound, tasks in sample.buckets:
                    le = "+Inf" if bound == math.inf else repr(bound)
                    at = tuple(sorted({**labels, "le": le}.items()))
                    assert found[f"{metric.name}_bucket"][at] == tasks
    assert "non-finite" not in caplog.text
    assert found["fairness_up"] == {(): 1}
    assert found["fairness_starts"][("queue", "celery"), ("tier", "free")] == 1


def test_a_collection_reads_once_and_the_next_one_reads_again(
    yard: Yard, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = [], yard.fairness.stats.metrics

    def counted() -> Any:
        reads.append(1)
        return read()

    monkeypatch.setattr(yard.fairness.stats, "metrics", counted)
    observe_metrics(yard.app, reader.provider)
    for count in (1, 2, 3):
        points(reader)
        assert len(reads) == count


def test_while_redis_is_away_only_the_two_of_the_scrape_are_observed(
    yard: Yard, reader: Any, redis_server: RedisServer
) -> None:
    observe_metrics(yard.app, reader.provider)
    assert points(reader)["fairness_up"] == {(): 1}
    redis_server.pause()
    try:
        found = points(reader)
    finally:
        redis_server.resume()
    assert found["fairness_up"] == {(): 0}
    assert {name for name, values in found.items() if values} == {
        "fairness_up",
        "fairness_scrape_age_seconds",
    }
    assert points(reader)["fairness_up"] == {(): 1}


@pytest.fixture(params=["before", "after"])
def spans(
    yard: Yard, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], list[ReadableSpan]]]:
    """Return the finished spans of runs of a task; annotated before or after instrumentation."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = CeleryInstrumentor()
    stop = annotate_spans(yard.app) if request.param == "before" else None
    instrumentor.instrument(tracer_provider=provider)
    stop = stop or annotate_spans(yard.app)

    def finished(name: str) -> list[ReadableSpan]:
        return [each for each in exporter.get_finished_spans() if each.name == f"run/{name}"]

    yield finished
    instrumentor.uninstrument()
    stop()
    provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {
        name.removeprefix("fairness."): value
        for name, value in (span.attributes or {}).items()
        if name.startswith("fairness.")
    }


@pytest.mark.parametrize("yard", ["fairredis", "redis"], indirect=True)
def test_a_span_has_what_its_task_waited_for(
    yard: Yard, spans: Callable[[str], list[ReadableSpan]]
) -> None:
    one = RateLimitPolicy("api", concurrency=1)
    first = yard.work.apply_async(("42",), {"wait": True}, limits=[one])
    eventually(lambda: yard.meter.now("42") == 1)
    second = yard.work.apply_async(("43",), limits=[one])
    # A task that waits was not necessarily rejected yet.
    eventually(lambda: [each.key for each in yard.fairness.stats.rejections().keys] == ["api"])
    yard.permits.release()
    for each in (first, second):
        eventually(each.ready)
    found = eventually(lambda: len(each := spans("yard.work")) == 2 and each)
    by_tenant = {attributes(each)["tenant"]: attributes(each) for each in found}
    # At a gate only a parked task has waited.
    assert by_tenant["42"].pop("wait_seconds", 0) >= 0
    assert by_tenant["42"] == {"tenant": "42", "tier": "free", "queue": "celery"}
    assert by_tenant["43"].pop("wait_seconds") > 0
    assert by_tenant["43"] == {
        "tenant": "43",
        "tier": "free",
        "queue": "celery",
        "limit": "api",
    }


@claimed
def test_a_retry_has_a_wait_of_its_own_and_its_message_does_not_have_the_old_one(
    yard: Yard, spans: Callable[[str], list[ReadableSpan]]
) -> None:
    sent = yard.work.apply_async(("42",), {"wait": True, "fail_times": 1})
    # The instrumentation keeps one span of a publication by id. In one process, the publication of
    # the retry must not begin before that of the task has ended.
    yard.permits.release(2)
    eventually(sent.ready)
    found = eventually(lambda: len(each := spans("yard.work")) == 2 and each)
    first, again = sorted(found, key=lambda each: each.start_time or 0)
    apart = ((again.start_time or 0) - (first.start_time or 0)) / 1e9
    assert attributes(first)["wait_seconds"] >= 0
    # The wait begins when the time of the retry has come, half a second after the first body began.
    assert 0 <= attributes(again)["wait_seconds"] <= apart - 0.5 + 0.01


@claimed
def test_a_task_without_a_tenant_has_a_queue_and_a_wait(
    yard: Yard, spans: Callable[[str], list[ReadableSpan]]
) -> None:
    yard.plain.delay(1)
    (span,) = eventually(lambda: spans("yard.plain"))
    assert set(attributes(span)) == {"queue", "wait_seconds"}


def test_a_task_of_a_gate_that_was_not_parked_has_no_wait(
    yard: Yard, spans: Callable[[str], list[ReadableSpan]]
) -> None:
    eventually(yard.work.delay("42").ready)
    (span,) = eventually(lambda: spans("yard.work"))
    assert attributes(span) == {"tenant": "42", "tier": "free", "queue": "celery"}


def test_an_eager_task_leaves_the_span_of_its_caller_alone(
    yard: Yard, spans: Callable[[str], list[ReadableSpan]]
) -> None:
    yard.work.apply(("42",))
    assert [attributes(each) for each in spans("yard.work")] == [{}]
