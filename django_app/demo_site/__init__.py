"""A Django project that shows celery_fairness at work: demo tasks, their page, and the admin.

Invariant: it writes to one folder only, which git ignores (DEMO_SITE_DIR, by default
``django_app/.site``). No secret is in the repository.

Weakness: it is a demonstration on one machine, with Django's development server.
"""

from demo_site.celery import app as celery_app

__all__ = ["celery_app"]
