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
def tasks(request: HttpRequest) -> HttpResponse:
    """Show running and finished tasks of each tenant."""
    context = {
        "tenants": overview(datetime.now(UTC), LiveCounts.of_page(request)),
        "refresh_seconds": REFRESH_SECONDS,
        "enabled": wiring.settings_in_force().enabled,
    }
    return render(request, "demo_site/tasks.html", context)
