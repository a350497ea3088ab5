"""A Django project that shows celery_fairness at work: demo tasks, their page, and the admin.

Invariant: whatever it writes lies in one folder (``django_app/.site`` unless DEMO_SITE_DIR says
otherwise), which git ignores; nothing secret is in the repository.

Weakness: it is a demonstration on one machine: its server is Django's development server.
"""

from demo_site.celery import app as celery_app

__all__ = ["celery_app"]
