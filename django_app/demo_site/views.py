"""The page of tasks.

Invariant: it is plain HTML that reloads every two seconds, without scripts and without the
internet.

Weakness: everybody who reaches the site sees it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from django_celery_fairness import wiring
from django_celery_fairness.live_counts import LiveCounts

from demo_site.overview import overview

REFRESH_SECONDS = 2


@require_safe
@never_cache
def home(request: HttpRequest) -> HttpResponse:
    """Show running and finished tasks of each tenant."""
    settings, fairness = wiring.settings_in_force(), wiring.wired()
    context = {
        "claims": fairness is not None and fairness.claims_fairly,
        "tenants": overview(datetime.now(UTC), LiveCounts.of_page(request)),
        "refresh_seconds": REFRESH_SECONDS,
        "snooze_seconds": settings.snooze_seconds,
        "jitter_seconds": settings.snooze_jitter_seconds,
        "enabled": settings.enabled,
    }
    return render(request, "demo_site/home.html", context)
