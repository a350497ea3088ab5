"""Addresses of the demo site: the admin and the HTTP API.

Invariant: nothing is fetched from the internet.
"""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

admin.site.site_header = "celery_fairness demo"
admin.site.site_title = "celery_fairness demo"
admin.site.index_title = "Limits"

DASHBOARD = "admin:django_celery_fairness_dashboard_changelist"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name=DASHBOARD)),
    path("admin/", admin.site.urls),
    path("", include("django_celery_fairness.api.urls")),
]
