"""The entry point of ``celery -A APP fairness``.

Celery loads this module for each ``celery`` command, so it imports only click. The commands are in
:mod:`celery_fairness.cli.nouns`, which is loaded when one of them is looked up.
"""

from __future__ import annotations

from typing import Any

import click


class Suggesting(click.Group):
    """A group that suggests a command for a misspelled one, with any version of click."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command by its name, and the other arguments."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            from celery_fairness.errors import suggestion

            hint = suggestion(args[0], self.list_commands(context))
            if not hint or "mean" in error.format_message():
                raise
            text = f"{error.format_message()} {hint.removeprefix(', ').capitalize()}"
            raise click.UsageError(text, context) from None


class _Commands(Suggesting):
    def list_commands(self, context: click.Context) -> list[str]:
        return self._nouns().list_commands(context)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return self._nouns().get_command(context, name)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # From these names click suggests one for a misspelled command.
        self.commands = self._nouns().commands
        return super().resolve_command(context, args)

    def _nouns(self) -> click.Group:
        from celery_fairness.cli.nouns import nouns

        return nouns


HELP = """Look at limits, tenants, queues, tasks and events, and change them.

\b
Examples:
  celery -A shop fairness status
  celery -A shop fairness limit show api.stripe.com
  celery -A shop fairness tenant tier 42 pro
  celery -A shop fairness task explain 7f3c
"""


@click.group(cls=_Commands, help=HELP)
def fairness(**_: Any) -> None:
    """Do nothing: each command does its own work."""
