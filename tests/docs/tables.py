"""The tables of the documentation that are made from code: settings, events, metrics and others.

`python -m tests.docs.tables` writes them into the files, between the marks
`<!-- table: NAME -->` and `<!-- end: NAME -->`. A test compares.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from celery_fairness.config.environment import VARIABLES
from celery_fairness.config.numbers import HOLDERS, NUMBERS
from celery_fairness.config.settings import Settings, expected
from celery_fairness.config.worker_shares import PARTS, SLOTS
from celery_fairness.control.health.doctor.diagnosis import CHECKS
from celery_fairness.control.health.event_types import TYPES
from celery_fairness.control.health.metric_table import METRICS

ROOT = Path(__file__).resolve().parents[2]
#: Each file with the tables that it has.
FILES = {
    ROOT / "docs" / "reference" / "settings.md": ("settings", "variables"),
    ROOT / "docs" / "reference" / "events.md": ("events",),
    ROOT / "docs" / "reference" / "metrics.md": ("metrics",),
    ROOT / "docs" / "reference" / "commands.md": ("doctor",),
    ROOT / "docs" / "reference" / "limits.md": ("numbers",),
    ROOT / "docs" / "reference" / "http-api.md": ("bodies",),
    ROOT / "docs" / "reference" / "versions.md": ("rows", "versions"),
}


def settings_table() -> str:
    """Every setting: its name, what it takes, its default, its effect."""
    rows = []
    for name, field in Settings.model_fields.items():
        value = field.get_default(call_default_factory=True)
        if name == "tiers":
            default = ", ".join(f"`{tier.name}` {tier.concurrency}" for tier in value.values())
        else:
            default = f"`{value!r}`"
        rows.append((f"`{name}`", expected(name), default, str(field.description)))
    return _table(("setting", "takes", "default", "effect"), rows)


def numbers_table() -> str:
    """Every number: its name, what has it and by which word, what it takes, its meaning."""
    rows = []
    for name, each in NUMBERS.items():
        words = ((holder, word) for holder in HOLDERS for word in _words(holder, name))
        has = (holder if word == name else f"{holder} (`{word}`)" for holder, word in words)
        rows.append((f"`{name}`", ", ".join(has), each.kind.rule.expected, each.help))
    return _table(("number", "of", "takes", "meaning"), rows)


#: The bodies that have numbers: their routes, and what has the numbers.
BODIES = {
    "`PUT rate-limits/{key}`": "override",
    "`PUT admin/queues/{name}/rate-limit`": "queue",
    "the same, in `partition`": "partition",
    "`PUT tiers/{name}`": "tier",
    "`PUT tenants/{tenant}`": "tenant",
}


def bodies_table() -> str:
    """Every body with numbers: its route, and the names of the numbers."""
    rows = [
        (route, ", ".join(f"`{name}`" for name in HOLDERS[holder].values()))
        for route, holder in BODIES.items()
    ]
    return _table(("route", "numbers"), rows)


def _words(holder: str, name: str) -> list[str]:
    return [word for word, known in HOLDERS[holder].items() if known == name]


def variables_table() -> str:
    """Every variable of the environment: its name, its setting, what it takes."""
    rows = [(f"`{name}`", f"`{each.setting}`", each.expected) for name, each in VARIABLES.items()]
    for part in PARTS:
        variable = f"`{{SERVICE}}_QUEUE_{part.upper()}_WORKERS`"
        rows.append((variable, f"`services.*.{part}`", SLOTS.expected))
    return _table(("variable", "setting", "takes"), rows)


def events_table() -> str:
    """Every type of event: its name, its data, its stream, when it is emitted."""
    rows = [
        (
            f"`{each.name}`",
            ", ".join(f"`{name}`" for name in each.fields),
            f"`{each.stream}`",
            each.meaning,
        )
        for each in TYPES.values()
    ]
    return _table(("type", "data", "stream", "emitted when"), rows)


def metrics_table() -> str:
    """Every metric: its name, its type, its labels, its meaning."""
    rows = [
        (f"`{each.name}`", each.kind, ", ".join(f"`{name}`" for name in each.labels), each.help)
        for each in METRICS
    ]
    return _table(("metric", "type", "labels", "meaning"), rows)


def doctor_table() -> str:
    """Every check of ``doctor``: its name, when it finds something, whether workers run it."""
    rows = [(f"`{each.name}`", each.finds, "yes" if each.at_start else "no") for each in CHECKS]
    return _table(("check", "finds that", "at a worker's start"), rows)


#: What users of the package install with it; `dev` is for those who change it.
EXTRAS = ("embedded", "django", "metrics", "top", "otel")


def versions_table() -> str:
    """Every package that users install: the lowest version allowed, and those that CI installs."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = [setup["options"]["install_requires"]]
    texts += [setup["options.extras_require"][extra] for extra in EXTRAS]
    lines = "\n".join(texts).splitlines()
    asked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = [Requirement(line) for line in pins if not line.strip().startswith("#")]
    rows = []
    for each in asked:
        lowest = next(part.version for part in each.specifier if part.operator == ">=")
        versions = [
            str(pin.specifier).removeprefix("==") + (f" ({pin.marker})" if pin.marker else "")
            for pin in pinned
            if pin.name == each.name
        ]
        rows.append((f"`{each.name}`", lowest, ", ".join(versions).replace('"', "")))
    return _table(("package", "lowest", "installed in CI"), rows)


def rows_table() -> str:
    """Every row of versions that the quick tests run with, and when it ran."""
    names = ("name", "python", "celery", "kombu", "redis", "others")
    rows = tomllib.loads((ROOT / "scripts" / "versions.toml").read_text("utf-8"))["row"]
    texts = [
        [each[name] for name in names] + ["each change" if each["ci"] else each["ran"] or "not yet"]
        for each in rows
    ]
    return _table(("row", "Python", "Celery", "kombu", "redis-py", "other packages", "ran"), texts)


TABLES = {
    "settings": settings_table,
    "numbers": numbers_table,
    "bodies": bodies_table,
    "variables": variables_table,
    "events": events_table,
    "metrics": metrics_table,
    "doctor": doctor_table,
    "rows": rows_table,
    "versions": versions_table,
}


def written(text: str, names: Iterable[str]) -> str:
    """Return `text` with its tables as they are in the code."""
    for name in names:
        table = TABLES[name]
        between = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
        match = between.search(text)
        if match is None:
            raise ValueError(f"expected a place for the table {name!r}, got: none")
        text = f"{text[: match.end(1)]}\n{table()}\n{text[match.start(2) :]}"
    return text


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(c.replace('|', '/') for c in line)} |\n" for line in lines)


if __name__ == "__main__":
    for path, names in FILES.items():
        path.write_text(written(path.read_text("utf-8"), names), "utf-8")
