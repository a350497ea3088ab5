"""The app's configuration: connects signals and registers checks when Django is ready.

Invariant: importing this module does neither.

Weakness: Django calls ``ready`` once for a process, so a project that configures Celery later than
that is seen by the checks as not wired.
"""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class FairnessConfig(AppConfig):
    """``django_celery_fairness`` in ``INSTALLED_APPS``."""

    name = "django_celery_fairness"
    verbose_name = _("Celery fairness")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect receivers and register checks."""
        from django_celery_fairness import checks, receivers

        receivers.connect()
        checks.connect()
