"""Adds numbers to the table of numbers, and prints which of them each derived place has.

`python -m tests.support.new_numbers` is a process of its own, because the package derives its
classes from the table when they are imported. It has one new number of each kind, for every holder.
It prints a JSON object of lists: the numbers found, by place.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from celery_fairness.config import numbers as table

#: Each new number: its kind, a value that code gives, the text of it, and an invalid value.
NEW: dict[str, tuple[table.Kind, Any, str, Any]] = {
    "probe": (table.COUNT, 7, "7", -1),
    "part": (table.Share(table.MAX_WEIGHT), 2.5, "2.5", 0),
    "pace": (table.Starts(), "5/PT1M", "5/PT1M", "often"),
}
GIVEN = {name: value for name, (_, value, _, _) in NEW.items()}
TYPED = {name: text for name, (_, _, text, _) in NEW.items()}
INVALID = {name: wrong for name, (_, _, _, wrong) in NEW.items()}
PLACES: dict[str, Callable[[], Iterable[str]]] = {}


def add_numbers() -> None:
    """Add the numbers. Nothing but the table may be imported before."""
    for letter, (name, (kind, _, text, _)) in zip("PQX", NEW.items(), strict=True):
        each = table.Number(name, letter, kind, f"The {name} of a test.", text, f"{{}} {name}")
        table.NUMBERS[name] = table.BY_LETTER[letter] = each
        for words in table.HOLDERS.values():
            words[name] = name  # type: ignore[index]  # at run time it is a dict


def place(find: Callable[[], Iterable[str]]) -> Callable[[], Iterable[str]]:
    """Add a place: a function that returns the names that it finds there, also other names."""
    PLACES[find.__name__.replace("_", " ")] = find
    return find


def _rejected(read: Callable[[dict[str, Any]], Any]) -> list[str]:
    """Return the names in the problems of invalid numbers."""
    from celery_fairness.errors import ProblemsError

    try:
        read(INVALID)
    except (ProblemsError, ValueError) as error:
        return [name for name in NEW if f"{name}: expected" in str(error)]
    return []


@place
def a_tier_of_the_settings() -> Iterable[str]:
    from celery_fairness.config.tiers import Tier, tier_fields

    return tier_fields(_tiers({"gold": {"concurrency": 1, **GIVEN}})["gold"]).keys() & {
        name for name in NEW if getattr(Tier("a", 1, **GIVEN), name) == _read(name)
    }


def _read(name: str) -> Any:
    """Return the value of a number as its kind reads it."""
    kind, value, _, _ = NEW[name]
    return kind.read(name, value)


def _tiers(given: dict[str, Any]) -> Any:
    from celery_fairness.config.settings import build_settings

    return build_settings({"tiers": given}).tiers


@place
def the_error_of_a_tier() -> Iterable[str]:
    return _rejected(lambda wrong: _tiers({"gold": {"concurrency": 1, **wrong}}))


@place
def a_queue_of_the_settings() -> Iterable[str]:
    from celery_fairness.config.queue_policy import read_queue

    return dict(read_queue(GIVEN).limit.numbers)


@place
def a_partition_of_the_settings() -> Iterable[str]:
    from celery_fairness.config.queue_policy import read_queue

    limit = read_queue({"partition": GIVEN}).part_limit
    assert limit is not None
    return dict(limit.numbers)


@place
def the_error_of_a_queue() -> Iterable[str]:
    from celery_fairness.config.queue_policy import read_queue

    return _rejected(read_queue)


@place
def a_policy() -> Iterable[str]:
    from celery_fairness import RateLimitPolicy

    policy = RateLimitPolicy("a", **GIVEN)
    assert RateLimitPolicy.from_ojs(policy.to_ojs()) == policy
    return dict(policy.limit().numbers)


@place
def the_error_of_a_policy() -> Iterable[str]:
    from celery_fairness import RateLimitPolicy

    return _rejected(lambda wrong: RateLimitPolicy("a", **wrong))


@place
def the_text_in_redis() -> Iterable[str]:
    from celery_fairness import RateLimitPolicy
    from celery_fairness.config.limit_spec import read_limits

    text = RateLimitPolicy("a", **GIVEN).limit().text
    assert text == "a|P7;Q2.5;X5/60000|w", text
    return dict(read_limits(text)[0].numbers)


@place
def the_function_library() -> Iterable[str]:
    from celery_fairness.store.library import library

    code = library().code
    return [
        name
        for letter, name in zip("PQX", NEW, strict=True)
        if f'{letter} = {{name = "{name}", kind = "{NEW[name][0].name}"}}' in code
    ]


@place
def the_text_for_people() -> Iterable[str]:
    from celery_fairness import RateLimitPolicy

    text = table.numbers_text(dict(RateLimitPolicy("a", **GIVEN).limit().numbers))
    return text.replace(",", "").split()


def _verb(name: str) -> Any:
    from celery_fairness.cli.answers import verbs
    from celery_fairness.cli.nouns import nouns

    return dict(verbs(nouns))[name]


def _options(name: str) -> Iterable[str]:
    return [each.name for each in _verb(name).params]


@place
def options_of_limit_override() -> Iterable[str]:
    return _options("limit override")


@place
def options_of_tenant_tier() -> Iterable[str]:
    return _options("tenant tier")


@place
def options_of_queue_limit() -> Iterable[str]:
    return _options("queue limit")


@place
def an_override_in_answers() -> Any:
    from celery_fairness.control.key.views import Override

    return Override.model_fields


@place
def a_queue_limit_in_answers() -> Any:
    from celery_fairness.control.queue.views import QueueLimit

    return QueueLimit.model_fields


@place
def the_schema_of_limit_show() -> Any:
    return _verb("limit show").schema("limit show")["$defs"]["Override"]["properties"]


@place
def the_table_of_the_documentation() -> Iterable[str]:
    from tests.docs.tables import numbers_table

    return [line.split("`")[1] for line in numbers_table().splitlines()[2:]]


def _schema(name: str) -> Any:
    from django_celery_fairness.api.urls import api

    return api.get_openapi_schema()["components"]["schemas"][name]["properties"]


for body in ("OverrideBody", "TierBody", "TenantBody", "QueueLimitBody"):
    PLACES[f"the HTTP body {body}"] = partial(_schema, body)
for answer in ("TierState", "TenantState", "QueueLimitState", "Override"):
    PLACES[f"the HTTP answer {answer}"] = partial(_schema, answer)


def _fields(model: str) -> Iterable[str]:
    """Return the fields of a model that have a constraint, a help text and a place in the admin."""
    from django.apps import apps
    from django.contrib.admin import autodiscover, site
    from django.contrib.admin.utils import flatten

    autodiscover()
    made = apps.get_model("django_celery_fairness", model)
    bounded = " ".join(each.name for each in made._meta.constraints)
    shown = flatten(site.get_model_admin(made).fields or ())
    return [
        each.name
        for each in made._meta.fields
        if f"_{each.name}" in bounded and each.help_text and each.name in shown
    ]


for model in ("Tier", "TenantTier", "QueueLimit", "LimitOverride"):
    PLACES[f"the model {model}"] = partial(_fields, model)


@place
def a_published_tier() -> Iterable[str]:
    from django_celery_fairness.models import Tier

    from celery_fairness.config.tiers import tier_fields

    fields = tier_fields(Tier(name="gold", **GIVEN).published())
    return [name for name in NEW if fields[name] == _read(name)]


@place
def a_published_queue() -> Iterable[str]:
    from django_celery_fairness.models import QueueLimit

    return dict(QueueLimit(queue="mail", **GIVEN).numbers().limit.numbers)


@place
def a_published_partition() -> Iterable[str]:
    from django_celery_fairness.models import QueueLimit

    columns = {f"partition_{name}": value for name, value in GIVEN.items()}
    limit = QueueLimit(queue="mail", **columns).numbers().part_limit
    assert limit is not None
    return dict(limit.numbers)


@place
def a_published_override() -> Iterable[str]:
    from django_celery_fairness.models import LimitOverride

    return LimitOverride(key="a", **TYPED).numbers()


@place
def the_fields_that_are_published() -> Iterable[str]:
    from django_celery_fairness import publishers

    return set(publishers._TIER_FIELDS) & set(publishers._QUEUE_FIELDS)


def main() -> None:
    """Print the numbers that each place has."""
    add_numbers()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "django_app"))
    os.environ["DJANGO_SETTINGS_MODULE"] = "demo_site.settings"
    import django

    django.setup()
    print(json.dumps({name: _found(find) for name, find in PLACES.items()}))


def _found(find: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return [name for name in find() if name in NEW]
    except Exception as error:  # noqa: BLE001  # the other places have answers nevertheless
        return [repr(error)]


if __name__ == "__main__":
    main()
