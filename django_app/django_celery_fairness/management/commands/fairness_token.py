"""``manage.py fairness_token``: makes, lists and revokes tokens of the HTTP API.

Invariant: a token is printed once, by the command that makes it. No other output has one.

Weakness: a terminal or a log that keeps output keeps the token.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from django_celery_fairness import tokens
from django_celery_fairness.models import ApiToken


class Command(BaseCommand):
    """Tokens of the HTTP API."""

    help = "Makes, lists and revokes tokens of the HTTP API."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take what to do, and with which token."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="make a token, and print it once")
        create.add_argument("name", help="who uses it")
        create.add_argument("--write", action="store_true", help="it may change limits too")
        create.add_argument("--owner", help="the user whose permissions bound it")
        verbs.add_parser("list", help="list the tokens, the revoked ones too")
        revoke = verbs.add_parser("revoke", help="end a token")
        revoke.add_argument("name", help="the name that it was made with")

    def handle(self, *_args: Any, verb: str, **options: Any) -> None:
        """Do what the verb names."""
        if verb == "create":
            self._create(**options)
        elif verb == "revoke":
            if not tokens.revoke(options["name"]):
                raise CommandError(f"no token {options['name']!r} is in use", returncode=1)
            self.stdout.write(f"revoked {options['name']}")
        else:
            for row in ApiToken.objects.select_related("owner"):
                self.stdout.write(_line(row))

    def _create(self, name: str, *, write: bool, owner: str | None, **_options: Any) -> None:
        user = None
        if owner is not None:
            users = get_user_model()
            user = users.objects.filter(**{users.USERNAME_FIELD: owner}).first()
            if user is None:
                raise CommandError(f"there is no user {owner!r}", returncode=1)
        scope = ApiToken.Scope.WRITE if write else ApiToken.Scope.READ
        try:
            _, text = tokens.create(name, scope, user)
        except ValidationError as error:
            raise CommandError("; ".join(error.messages), returncode=1) from error
        self.stdout.write(text)
        self.stderr.write("store it now: it is not shown again")


def _line(row: ApiToken) -> str:
    state = f"revoked {row.revoked_at:%Y-%m-%d}" if row.revoked_at else row.scope
    used = f"used {row.last_used_at:%Y-%m-%d %H:%M}" if row.last_used_at else "never used"
    owner = f", of {row.owner}" if row.owner else ""
    return f"fairness_{row.prefix}_…  {row.name}: {state}, {used}{owner}"
