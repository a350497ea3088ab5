"""``manage.py publish``: writes all rows of the database to Redis that Redis keeps.

Invariant: it is harmless at any time, and a second run changes nothing. The exit code is 0 for
success, and 69 if Redis does not answer. It is 1 if the Celery app has no ``Fairness``, a setting
is invalid or a row cannot be published.

Weakness: the time of a tenant's row may begin between two runs. Then the tenant's waiting tasks
follow with the later run.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from celery_fairness.errors import FairnessError, LimiterUnavailable
from django_celery_fairness.publishing import publish_everything

#: EX_UNAVAILABLE of sysexits.h, as for every command of celery_fairness.
REDIS_AWAY = 69


class Command(BaseCommand):
    """Publish everything."""

    help = "Writes tiers, tenants, limits of queues and overrides of the database to Redis."
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the database to read from."""
        parser.add_argument(
            "--database", help="The database to read from (the one that tiers are written to)."
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Publish everything, and print the numbers."""
        try:
            published = publish_everything(options["database"])
        except LimiterUnavailable as error:
            raise CommandError(str(error), returncode=REDIS_AWAY) from error
        except FairnessError as error:
            raise CommandError(str(error), returncode=1) from error
        self.stdout.write(
            f"published {published.tiers} tiers, {published.tenants} tenants, "
            f"{published.queues} queues, {published.overrides} overrides; "
            f"{published.by_tier} tenants have the number of their tier, which needs no publication"
        )
        if published.rejected:
            raise CommandError("not published: " + "; ".join(published.rejected), returncode=1)
