"""Addresses of the demo site: the page of tasks, the admin, and the HTTP API.

Invariant: nothing is fetched from the internet.

Weakness: the page of tasks needs no login. It shows only tasks of the demo.
"""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from demo_site.views import home

admin.site.site_header = "celery_fairness demo"
admin.site.site_title = "celery_fairness demo"
admin.site.index_title = "Limits"

urlpatterns = [
    path("", home, name="home"),
    path("admin/", admin.site.urls),
    path("", include("django_celery_fairness.api.urls")),
]
