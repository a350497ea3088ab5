"""The Celery app of the demo site, and the one line that makes it fair.

Invariant: it has everything that a project with celery_fairness needs: settings in Django's
``CELERY_FAIRNESS``, and ``Fairness(app)``.

Weakness: the broker is a Redis on this machine unless CELERY_BROKER_URL names another.
"""

from __future__ import annotations

import os

from celery import Celery

from celery_fairness import Fairness

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_site.settings")

app = Celery("demo_site")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
fairness = Fairness(app)
