"""The demo's own app: the ledger of its tasks and the command that serves the site.

Invariant: ready does nothing.

Weakness: none of it is meant for use outside the demo.
"""

from __future__ import annotations

from django.apps import AppConfig


class DemoSiteConfig(AppConfig):
    """``demo_site`` in ``INSTALLED_APPS``."""

    name = "demo_site"
    verbose_name = "Demo"
    default_auto_field = "django.db.models.BigAutoField"
