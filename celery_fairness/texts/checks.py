"""The texts of ``doctor`` and of the check of tables."""

from __future__ import annotations

import textwrap

import click

from celery_fairness.control.health.doctor.diagnosis import CHECKS
from celery_fairness.control.health.doctor.symptoms import Diagnosis
from celery_fairness.control.health.views import Check
from celery_fairness.texts.format import (
    count,
)
from celery_fairness.texts.status import verdict_line
from celery_fairness.util.printable import printable

#: Longest line of running text.
WIDTH = 80


def doctor_lines(found: Diagnosis) -> list[str]:
    """Return what ``doctor`` found, and the verdict's sentence at the end."""
    lines = []
    for each in found.symptoms:
        color = "red" if each.level == "problem" else "yellow"
        head = f"{each.level.upper()} {each.check}"
        first, *rest = _wrapped(f"{head}: {each.what}")
        lines += [click.style(head, fg=color, bold=True) + first.removeprefix(head), *rest]
        lines += [*_wrapped(each.consequence, "  "), *_wrapped(f"fix: {each.fix}", "  "), ""]
    if not lines:
        lines = [f"{count(len(CHECKS), 'check')}: nothing is wrong", ""]
    return [*lines, verdict_line(found.verdict)]


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Return lines that fit into a terminal; a word such as a command stays whole."""
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def check_lines(check: Check) -> list[str]:
    """Return the findings of a check, each with its repair or an advice, as text."""
    findings = check.findings
    head = f"{count(len(findings), 'finding')} in {count(check.keys, 'key')}"
    lines = [click.style(head, fg="red" if findings else "green")]
    for each in findings:
        where = f"{each.key} {each.row}".strip()
        then = f"repaired: {each.repaired}" if each.repaired else each.advice
        lines += ["", printable(where), f"  {printable(each.problem)}", f"  {then}"]
    return lines
