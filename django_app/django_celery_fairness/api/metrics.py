"""The metrics for Prometheus and autoscalers: ``include("django_celery_fairness.api.metrics")``.

Its addresses are ``metrics`` and ``metrics/autoscale``. They exist only if the Django setting
``FAIRNESS_METRICS`` is true. Callers need a token, or a session with the permission
``view_dashboard``: the dashboard shows the same numbers.

Invariant: no request without a name has another answer than 401.

Weakness: each process of the project reads for itself, so the age is that of its own numbers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_safe

from celery_fairness import Fairness
from celery_fairness.exporter import expect_client
from django_celery_fairness.api.auth import admit
from django_celery_fairness.api.urls import in_our_form
from django_celery_fairness.permissions import Action

if TYPE_CHECKING:
    from celery_fairness.exporter.collector import Exposition


class _Expositions:
    """The answers of this process about the ``Fairness`` that is wired now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: tuple[Fairness, Exposition] | None = None

    def current(self) -> Exposition:
        """Return the answers.

        Raises:
            NotWired: The Celery app of this process has no ``Fairness``.
            SettingsError: prometheus-client is not installed.
        """
        expect_client()
        from celery_fairness.exporter.collector import Exposition

        fairness = Fairness.of()
        with self._lock:
            if self._of is None or self._of[0] is not fairness:
                self._of = (fairness, Exposition(fairness))
            return self._of[1]


_shared = _Expositions()


def _exposition(request: HttpRequest) -> Exposition:
    admit(request, Action.SEE_DASHBOARD)
    if not getattr(settings, "FAIRNESS_METRICS", False):
        raise Http404
    return _shared.current()


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics in a form that the caller accepts."""
    exposition = _exposition(request)
    content_type, body = exposition.metrics(request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type)


@require_safe
def autoscale(request: HttpRequest) -> HttpResponse:
    """Return the load of one queue, or of all queues, as JSON."""
    body = _exposition(request).loads(request.GET.get("queue"))
    return HttpResponse(body, content_type="application/json")


urlpatterns = [
    path("metrics", in_our_form(metrics), name="fairness-metrics"),
    path("metrics/autoscale", in_our_form(autoscale), name="fairness-autoscale"),
]
