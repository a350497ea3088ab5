"""``manage.py publish_tiers``: write all tiers and tenants of the database to Redis, by hand.

Invariant: harmless at any time; the exit code says how it went: 0 published, 1 not wired or
settings in error, 69 Redis does not answer.

Weakness: it is needed only after Redis was away or lost its memory; a starting worker does the
same.
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

    help = "Writes all tiers and tenants' tiers of the database to Redis."
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the database to read from."""
        parser.add_argument(
            "--database", help="The database to read from (the one that tiers are written to)."
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Publish, and say how much."""
        try:
            published = publish_everything(options["database"])
        except LimiterUnavailable as error:
            raise CommandError(str(error), returncode=REDIS_AWAY) from error
        except FairnessError as error:
            raise CommandError(str(error), returncode=1) from error
        self.stdout.write(
            f"published {published.tiers} tiers, {published.tenants} tenants; "
            f"{published.by_tier} tenants have the number of their tier, which needs no publication"
        )
