"""The Celery app, with the settings that begin with CELERY_."""

import os

from celery import Celery

from celery_fairness import Fairness

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
fairness = Fairness(app)
