"""OpenTelemetry and correlation ids: a task runs in the trace that sent it, also if rejected."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest
from celery import signals
from conftest import RESULT_SECONDS, working
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_fairness import FairTask
from tests.support.waiting import eventually


@pytest.fixture
def spans():
    """The spans that end, in memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    CeleryInstrumentor().instrument(tracer_provider=provider)
    yield provider, exporter
    CeleryInstrumentor().uninstrument()


def test_each_run_is_in_the_trace_of_its_producer(make_app, path, spans) -> None:
    provider, exporter = spans
    app = make_app()
    go_on = threading.Event()

    @app.task(base=FairTask, tenant="user", name="foreign.traced")
    def work(number, user=None):
        assert go_on.wait(RESULT_SECONDS)
        return format(trace.get_current_span().get_span_context().trace_id, "x")

    with working(app):
        with provider.get_tracer("web").start_as_current_span("web") as web:
            sent = [work.delay(number, user="42") for number in range(3)]
        wanted = format(web.get_span_context().trace_id, "x")
        go_on.set()
        assert [each.get(timeout=RESULT_SECONDS) for each in sent] == [wanted] * 3

        def one_span_each():
            names = [each.name for each in exporter.get_finished_spans()]
            assert names.count("apply_async/foreign.traced") == 3
            assert names.count("run/foreign.traced") >= 3

        eventually(one_span_each)


#: The id of a web request, as asgi-correlation-id and django-guid have it.
correlation_id: ContextVar[str | None] = ContextVar("correlation_id", default=None)


@pytest.fixture
def hooks():
    """The hooks with which those packages pass the id on."""

    def before_publish(headers=None, **_):
        headers["CORRELATION_ID"] = correlation_id.get() or "made here"

    def before_run(task=None, **_):
        correlation_id.set(task.request.get("CORRELATION_ID"))

    def after_run(**_):
        correlation_id.set(None)

    connected = [
        (signals.before_task_publish, before_publish),
        (signals.task_prerun, before_run),
        (signals.task_postrun, after_run),
    ]
    for signal, hook in connected:
        signal.connect(hook)
    yield
    for signal, hook in connected:
        signal.disconnect(hook)


def test_a_task_keeps_the_id_of_its_request_also_after_a_rejection(make_app, path, hooks) -> None:
    app = make_app()
    go_on = threading.Event()

    @app.task(base=FairTask, tenant="user", name="foreign.request")
    def work(user=None):
        assert go_on.wait(RESULT_SECONDS)
        return [correlation_id.get(), child.delay().id]

    @app.task(base=FairTask, name="foreign.child")
    def child():
        return correlation_id.get()

    with working(app):
        sent = []
        for number in range(3):
            correlation_id.set(f"request {number}")
            sent.append(work.delay(user="42"))
        correlation_id.set(None)
        go_on.set()
        for number, each in enumerate(sent):
            found, its_child = each.get(timeout=RESULT_SECONDS)
            assert found == f"request {number}"
            assert app.AsyncResult(its_child).get(timeout=RESULT_SECONDS) == found
