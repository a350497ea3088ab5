"""The app that ``celery flower`` looks at."""

from __future__ import annotations

import os

from celery import Celery

from celery_fairness import Fairness

app = Celery("flower_app", broker=os.environ["SEEN_BROKER"], backend=os.environ["SEEN_BACKEND"])
app.conf.fairness = {"redis_url": os.environ["SEEN_BACKEND"]}
Fairness(app, environ={})
