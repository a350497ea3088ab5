"""Environment variables with the ADRs' names, laid over ``app.conf.fairness``.

They are read from a given mapping, never at import. An invalid value is an error that names the
variable. An unknown ``FAIRNESS_…`` variable is a warning with a suggestion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from celery_fairness.config.numbers import NUMBERS
from celery_fairness.config.settings import Settings, build_settings, expected
from celery_fairness.config.tiers import (
    DEFAULT_TIERS,
    Tier,
    tier_fields,
    tiers_by_name,
)
from celery_fairness.errors import SettingsError, got, suggestion
from celery_fairness.util.durations import DURATION_FORMS, parse_duration

_PREFIX = "FAIRNESS_"
#: The numbers of the default tiers that have a variable, by the end of its name.
_TIER_NUMBERS = {
    "LIMIT": "concurrency",
    "BURST": "burst",
    "RATE": "rate",
    "THROTTLE": "throttle",
}
#: The tier and the number of each of these variables.
_TIER_VARIABLES = {
    f"FAIRNESS_{tier.upper()}_{end}": (tier, number)
    for tier in DEFAULT_TIERS
    for end, number in _TIER_NUMBERS.items()
}
_WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
    "observe": "observe",
}


class Variable(NamedTuple):
    """A variable.

    Attributes:
        setting: The setting that it replaces.
        expected: The valid texts, for errors.
        read: Returns the value of a text. Raises ValueError or KeyError if the text is invalid.
    """

    setting: str
    expected: str
    read: Callable[[str], Any]


#: Every variable that is read.
VARIABLES: Mapping[str, Variable] = {
    "FAIRNESS_ENABLED": Variable(
        "enabled",
        "true/false, 1/0, yes/no, on/off or observe",
        lambda text: _WORDS[text.lower()],
    ),
    "FAIRNESS_REDIS_URL": Variable("redis_url", expected("redis_url"), str),
    **{
        name: Variable(
            f"tiers.{tier}.{number}",
            NUMBERS[number].kind.typed,
            partial(NUMBERS[number].kind.read_typed, name),
        )
        for name, (tier, number) in _TIER_VARIABLES.items()
    },
    "FAIRNESS_SNOOZE_DURATION": Variable("snooze_seconds", DURATION_FORMS, parse_duration),
    "FAIRNESS_SNOOZE_JITTER": Variable("snooze_jitter_seconds", DURATION_FORMS, parse_duration),
}


def load_settings(configured: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Lay the variables in ``environ`` over ``configured`` and validate both.

    Raises:
        SettingsError: A setting or variable is invalid, with one problem for each.
    """
    if not isinstance(configured, Mapping):
        raise SettingsError(f"fairness: expected a mapping of settings, got: {got(configured)}")
    values: dict[str, Any] = dict(configured)
    sources: dict[str, str] = {}
    problems: list[str] = []
    limits: dict[str, dict[str, Any]] = {}
    for name, variable in VARIABLES.items():
        text = environ.get(name, "").strip()
        if not text:
            continue
        try:
            value = variable.read(text)
        except (ValueError, KeyError):
            problems.append(f"{name}: expected {variable.expected}, got: {got(text)}")
            continue
        if name in _TIER_VARIABLES:
            tier, number = _TIER_VARIABLES[name]
            limits.setdefault(tier, {})[number] = value
        else:
            values[variable.setting] = value
            sources[variable.setting] = name
    if limits:
        values["tiers"] = _lay_limits(tiers_by_name(values.get("tiers", {})), limits)
    if problems:
        raise SettingsError(*problems)
    return build_settings(values, sources)


def tier_limit_variables(environ: Mapping[str, str]) -> dict[str, tuple[str, int | None]]:
    """Return the tiers whose concurrency a variable sets: ``{tier: (variable, concurrency)}``."""
    kind = NUMBERS["concurrency"].kind
    return {
        tier: (name, kind.read_typed(name, environ[name].strip()))
        for name, (tier, number) in _TIER_VARIABLES.items()
        if number == "concurrency" and environ.get(name, "").strip()
    }


def chosen_tiers(configured: Mapping[str, Any], environ: Mapping[str, str]) -> set[str]:
    """Return the names of the tiers that valid settings or variables choose.

    They may choose the numbers of the defaults.
    """
    by_variable = (
        tier for name, (tier, _) in _TIER_VARIABLES.items() if environ.get(name, "").strip()
    )
    names = {*tiers_by_name(configured.get("tiers", {})), *by_variable}
    return names | ({configured["default_tier"]} if "default_tier" in configured else set())


def _lay_limits(tiers: Any, limits: Mapping[str, Mapping[str, Any]]) -> Any:
    if not isinstance(tiers, Mapping):
        return tiers
    merged = dict(tiers)
    for tier, numbers in limits.items():
        fields = merged.get(tier, {})
        if fields is None:
            continue
        if isinstance(fields, Tier):
            fields = tier_fields(fields)
        merged[tier] = {**fields, **numbers} if isinstance(fields, Mapping) else fields
    return merged


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each ``FAIRNESS_…`` variable that is not known, and what to do about it."""
    return [
        (name, _instead_of(name))
        for name in sorted(environ)
        if name.startswith(_PREFIX) and name not in VARIABLES
    ]


def _instead_of(name: str) -> str:
    """Return what to do about an unknown variable."""
    setting = name.removeprefix(_PREFIX).lower()
    if setting in Settings.model_fields:
        return f"set {setting} in app.conf.fairness"
    # All of them share the prefix, so it must not add to the similarity.
    near = suggestion(setting, (each.removeprefix(_PREFIX).lower() for each in VARIABLES))
    found = re.search("'(.*)'", near)
    return f"write {_PREFIX}{found[1].upper()}" if found else "unset it"
