"""OpenTelemetry: the metrics of an installation as instruments, and attributes of Celery's spans.

The package needs opentelemetry-api only here. The program brings the SDK and its exporters, and
opentelemetry-instrumentation-celery makes the spans.

Invariant: every instrument is a metric of :mod:`celery_fairness.control.health.metric_table`.

Weakness: OpenTelemetry has no observable histogram. A histogram becomes three counters with the
names and the label ``le`` that Prometheus uses.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from celery_fairness import Fairness
from celery_fairness.app.signals import connect_runs
from celery_fairness.config.settings import Settings
from celery_fairness.control.health import metric_table as table
from celery_fairness.control.health.metric_table import Metric
from celery_fairness.control.health.metrics import Sample
from celery_fairness.exporter.scrape import Scraper
from celery_fairness.message.attribution import attribution_of
from celery_fairness.message.headers import CLAIM_PROPERTY, COPY_HEADER, headers_of
from celery_fairness.wiring import wired
from celery_fairness.worker.attempt_limits import queue_of

#: The units of metrics by the end of their name.
_UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}

#: Yields the labels and the value of each observation.
_Part = Callable[[Metric, Sample], Iterator[tuple[dict[str, str], float]]]


def observe_metrics(app: Any, meter_provider: MeterProvider | None = None) -> None:
    """Make an observable instrument of each metric of an installation.

    Each collection of a reader reads Redis once. Call this in one process of the installation.

    Args:
        app: The Celery app.
        meter_provider: Makes the instruments. None means the provider of the process.

    Raises:
        NotWired: The app has no ``Fairness``.
    """
    meter = get_meter("celery_fairness", meter_provider=meter_provider)
    rounds = _Rounds(Scraper(Fairness.of(app).stats.metrics))
    for metric in table.METRICS:
        unit = next((unit for end, unit in _UNITS.items() if metric.name.endswith(end)), "")
        if metric.kind == "gauge":
            callbacks = [rounds.callback(metric, _value)]
            meter.create_observable_gauge(metric.name, callbacks, unit, metric.help)
        elif metric.kind == "counter":
            callbacks = [rounds.callback(metric, _value)]
            meter.create_observable_counter(metric.name, callbacks, unit, metric.help)
        else:
            for end, part in (("_bucket", _buckets), ("_count", _count), ("_sum", _value)):
                meter.create_observable_counter(
                    metric.name + end,
                    [rounds.callback(metric, part)],
                    unit if end == "_sum" else "",
                    metric.help,
                )


def annotate_spans(app: Any) -> Callable[[], None]:
    """Add the tenant, the tier, the queue and the wait of each task to its span.

    The spans are those of opentelemetry-instrumentation-celery. Call this where the app is made.

    Returns:
        A function that ends this.

    Raises:
        NotWired: The app has no ``Fairness``.
    """
    parts = wired(app)

    def annotate(task: Any, args: Any, kwargs: Any) -> None:
        span = trace.get_current_span()
        # An eager task runs in the span of its caller.
        is_of_task = getattr(span, "kind", None) is trace.SpanKind.CONSUMER
        if is_of_task and span.is_recording() and not task.request.is_eager:
            # The settings are read at the first task.
            span.set_attributes(span_attributes(task, args or (), kwargs or {}, parts.settings))

    return connect_runs(parts.app, annotate)


def span_attributes(
    task: Any, args: Iterable[Any], kwargs: Mapping[str, Any], settings: Settings
) -> dict[str, str | float]:
    """Return the attributes of the attempt that runs in this thread. Unknown ones are missing."""
    request = task.request
    headers = headers_of(request)
    attribution = attribution_of(headers, tuple(args), kwargs, task, settings)
    # A gate gets them with the copy of a task that was parked.
    waits = (request.properties or {}).get(CLAIM_PROPERTY) or headers.get(COPY_HEADER) or {}
    waited_ms = waits.get("waited_ms")
    found = {
        "fairness.tenant": attribution.tenant,
        "fairness.tier": attribution.tier,
        "fairness.queue": queue_of(request),
        "fairness.wait_seconds": None if waited_ms is None else waited_ms / 1000,
        "fairness.limit": waits.get("limit"),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


class _Rounds:
    """Lets all instruments of one collection share one read.

    An instrument that asks for the second time begins a new collection.
    """

    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper
        self._lock = threading.Lock()
        self._samples: dict[Metric, tuple[Sample, ...]] = {}
        self._served: set[object] | None = None

    def callback(
        self, metric: Metric, part: _Part
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return the callback of one instrument."""

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            samples = self._of(metric, (metric, part))
            return [
                Observation(value, {**dict(zip(metric.labels, sample.labels, strict=True)), **more})
                for sample in samples
                for more, value in part(metric, sample)
                # The SDK logs a warning for an infinity, which stands for "unlimited" here.
                if math.isfinite(value)
            ]

        return observe

    def _of(self, metric: Metric, instrument: object) -> tuple[Sample, ...]:
        with self._lock:
            if self._served is None or instrument in self._served:
                self._samples = {each.metric: each.samples for each in self._scraper.families()}
                self._served = set()
            self._served.add(instrument)
            return self._samples.get(metric, ())


def _value(_: Metric, sample: Sample) -> Iterator[tuple[dict[str, str], float]]:
    yield {}, sample.value


def _count(_: Metric, sample: Sample) -> Iterator[tuple[dict[str, str], float]]:
    yield {}, sample.buckets[-1][1]


def _buckets(_: Metric, sample: Sample) -> Iterator[tuple[dict[str, str], float]]:
    for bound, tasks in sample.buckets:
        yield {"le": "+Inf" if bound == math.inf else repr(bound)}, tasks
