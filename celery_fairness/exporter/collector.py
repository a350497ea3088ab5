"""The metrics of an installation in the form of prometheus-client."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from celery_fairness.app.fairness import Fairness
from celery_fairness.control.health.metrics import Family
from celery_fairness.exporter.scrape import Scraper


class FairnessCollector(Collector):
    """Makes metrics of prometheus-client from each scrape."""

    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. If Redis does not answer, these are only the two of the scrape."""
        yield from map(_family, self._scraper.families())


class Exposition:
    """The answers to the questions of Prometheus and of an autoscaler.

    Args:
        fairness: The installation.
    """

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._registry = CollectorRegistry()
        self._registry.register(FairnessCollector(Scraper(fairness.stats.metrics)))

    def metrics(self, accept: str = "") -> tuple[str, bytes]:
        """Return the content type and the text of the metrics.

        Args:
            accept: The header ``Accept`` of the question.
        """
        encoder, content_type = choose_encoder(accept)
        return content_type, encoder(self._registry)

    def loads(self, queue: str | None = None) -> bytes:
        """Return the load of one queue, or of all queues that a scrape checks, as JSON.

        Raises:
            LimiterUnavailable: Redis does not answer.
        """
        stats = self._fairness.stats
        if queue is not None:
            return stats.load(queue).model_dump_json().encode()
        queues = [each.model_dump(mode="json") for each in stats.loads()]
        return json.dumps({"queues": queues}).encode()


def _family(family: Family) -> Metric:
    metric = family.metric
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for sample in family.samples:
            buckets = [(_bound(bound), float(tasks)) for bound, tasks in sample.buckets]
            histogram.add_metric(sample.labels, buckets, sample.value)
        return histogram
    of = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    found = of(metric.name, metric.help, labels=metric.labels)
    for sample in family.samples:
        found.add_metric(sample.labels, sample.value)
    return found


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == math.inf else repr(seconds)
