"""The help of every command shows examples, and each of them is a command line of that command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from celery_fairness.cli.commands import fairness as group

START = "celery -A shop fairness "


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, groups included."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))


def examples_of(path: tuple[str, ...]) -> list[list[str]]:
    done = CliRunner().invoke(group, [*path, "--help"])
    assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.output.splitlines()]
    return [shlex.split(line.removeprefix(START)) for line in lines if line.startswith(START)]


def parse(words: list[str]) -> None:
    """Parse ``words`` as click does before it runs a command."""
    command, context = group, None
    while isinstance(command, click.Group):
        context = context or click.Context(command, info_name="fairness")
        _, command, words = command.resolve_command(context, words)
        assert command is not None
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context, info_name=command.name)
    command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize("path", list(walk(group)), ids=lambda path: " ".join(path) or "fairness")
def test_the_help_of_a_command_has_examples_that_parse(path):
    examples = examples_of(path)
    assert examples, "no example in the help"
    for words in examples:
        assert tuple(words[: len(path)]) == path, "an example of another command"
        parse(words)


@pytest.mark.parametrize(
    "words", [["limit", "pause", "mail", "--fro", "10m"], ["limit", "shw"], ["limit", "show"]]
)
def test_a_mistyped_example_does_not_parse(words):
    with pytest.raises(click.UsageError):
        parse(words)


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["statu"], "status"), (["tennant", "show"], "tenant"), (["limit", "shw"], "show")],
)
def test_a_misspelled_command_is_suggested(words, meant):
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in done.output
