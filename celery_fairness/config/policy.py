"""Policies: the limits that a task declares, in Python and in the form of the Open Job Spec.

A task declares a :class:`RateLimitPolicy`, whose key may have fields. With the values of one task
it becomes a :class:`~celery_fairness.config.limit_spec.Limit`, whose key has none. If a task has
several limits with one key, :func:`merge` makes one limit of them, the strictest in each number.

Invariant: an invalid policy is an error that names all of its problems. It never silently becomes
"unlimited" or a default. None is unlimited, concurrency 0 pauses a key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from celery_fairness.config.fields import collect, one_of, unknown_problems
from celery_fairness.config.key_templates import KEY_EXPECTED, KeyTemplate, Missing
from celery_fairness.config.limit_spec import ACTIONS, Limit, OnLimit
from celery_fairness.config.numbers import ARGUMENT, NUMBERS, has_numbers_of, numbers_of
from celery_fairness.config.rates import RateLike
from celery_fairness.errors import PolicyInvalid, got

#: Most limits of one task, counted by key.
MAX_LIMITS = 16
ON_LIMIT = replace(one_of(*ACTIONS), suggests=ACTIONS)

_NUMBERS = numbers_of("policy")
_OJS_FIELDS = ("key", *_NUMBERS, "on_limit")
#: Fields in the dialects of two other tools, and what to write instead.
_DIALECT_FIELDS = {
    "max_per_second": 'a key and a throttle, such as {"limit": 5, "period": "PT1S"}',
    "period": 'it inside rate, as ISO 8601, such as {"limit": 5, "period": "PT1M"}',
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
@has_numbers_of("policy")
class RateLimitPolicy:
    """The limits that all tasks with one key share. A policy without numbers only counts.

    Attributes:
        key: The key, or a template with fields (:mod:`celery_fairness.config.key_templates`).
        concurrency: Tasks of the key at once, 0 to 1,000,000. None is unlimited, 0 pauses.
        rate: Starts in any window of a period, given in a form that :meth:`Rate.parse` reads. The
            attribute is a :class:`Rate` or None.
        throttle: Starts in a period, evenly spaced, likewise.
        slots: How much of the concurrency one task takes while it runs, 1 to 1,000,000, or the
            argument that has this number, such as ``args.gigabytes``. None is 1. If the number of
            an argument is above the concurrency, the task takes all of it.
        units: How much of the rate the start of one task takes, 1 to 10^9, or the argument
            that has this number, such as ``args.estimate``. None is 1. If the number of an
            argument is above the rate, the task takes all of it.
        on_limit: The action for a task over the limit. ``wait``: it waits. ``reschedule``: it is
            tried again when a start is expected. ``drop``: it does not run, and its result is
            ``RateLimitDropped``.
        missing: The action if a field of ``key`` has no value: ``error`` or ``empty``.
        template: The parsed key.

    Raises:
        PolicyInvalid: A value is invalid, with one problem for each.
    """

    key: str
    concurrency: int | None = None
    rate: RateLike | None = None
    throttle: RateLike | None = None
    on_limit: OnLimit = "wait"
    missing: Missing = "error"
    units: int | str | None = None
    slots: int | str | None = None
    template: KeyTemplate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        problems: list[str] = []
        template = collect(problems, KeyTemplate, self.key, self.missing)
        numbers = {
            name: collect(problems, number.kind.read, name, getattr(self, name))
            for name, number in _NUMBERS.items()
        }
        problems += ON_LIMIT.problems("on_limit", self.on_limit)
        problems += [] if problems else _amount_problems(self.key, numbers)
        if template is None or problems:
            raise PolicyInvalid(*problems)
        for name, value in {**numbers, "key": template.text, "template": template}.items():
            object.__setattr__(self, name, value)

    @property
    def amounts(self) -> dict[str, str]:
        """The arguments that say how much one task takes: the path of each by its number."""
        return {
            name: value.removeprefix(ARGUMENT)
            for name, number in _NUMBERS.items()
            if number.taken_of and isinstance(value := getattr(self, name), str)
        }

    @classmethod
    def from_ojs(cls, obj: Any, *, templates: bool = False, where: str = "") -> Self:
        """Read a policy in the form of the Open Job Spec.

        Args:
            obj: ``{"key", "concurrency", "rate": {"limit", "period"}, "throttle": {...},
                "on_limit"}``, where null means absent. Or a job that has such an object as
                ``rate_limit``, at its top or in its ``options``.
            templates: Accept fields in the key, arguments as amounts, and the field ``missing``.
            where: The object's place, for messages, such as ``limits[0]``. "" means the spec's own
                name.

        Raises:
            PolicyInvalid: A value is invalid or a field is unknown, with one problem for each.
        """
        problems: list[str] = []
        obj = _of_job(obj, problems)
        if not isinstance(obj, Mapping):
            raise PolicyInvalid(_with_place(where, f": expected an object, got: {got(obj)}"))
        fields = {name: value for name, value in obj.items() if value is not None}
        key = fields.get("key")
        if not templates and isinstance(key, str) and ("{" in key or "}" in key):
            problems.append(_fields_problem(key))
            fields["key"] = "key"
        for name, strict_form in _DIALECT_FIELDS.items():
            if name in fields:
                dialect = f"{name}: expected {strict_form}, got: {got(fields[name])}"
                raise PolicyInvalid(_with_place(where, dialect))
        known = (*_OJS_FIELDS, "missing") if templates else _OJS_FIELDS
        problems += unknown_problems(f": expected fields of {', '.join(known)}", fields, known)
        given = {name: fields[name] for name in known if name in fields}
        for name, number in _NUMBERS.items():
            if name in given:
                given[name] = collect(problems, number.kind.read_ojs, name, given[name])
                if number.taken_of and isinstance(given[name], str) and not templates:
                    problems.append(f"{name}: expected a whole number, got: {got(given[name])}")
        # The argument of one task may have more than the number of the key.
        amounts = {
            name: given.pop(name)
            for name, number in _NUMBERS.items()
            if not templates and number.taken_of and name in given
        }
        policy = collect(problems, lambda: cls(**{"key": None, **given}))
        for name, taken in amounts.items() if policy is not None else ():
            if getattr(policy, of := _NUMBERS[name].taken_of) is None:
                problems.append(_lacks(name, of))
            object.__setattr__(policy, name, taken)
        if policy is None or problems:
            raise PolicyInvalid(*(_with_place(where, problem) for problem in problems))
        return policy

    def to_ojs(self, key: str | None = None) -> dict[str, Any]:
        """Return the policy in the form of the Open Job Spec, without fields that are None.

        Args:
            key: The key of one task, required if the policy's key has fields.

        Raises:
            PolicyInvalid: The key has fields.
        """
        if key is None and not self.template.static:
            raise PolicyInvalid(_fields_problem(self.key))
        return self._written(self.key if key is None else key)

    def __json__(self) -> dict[str, Any]:
        """Return the policy as kombu writes it into a message, for example in a canvas.

        :meth:`from_ojs` with ``templates`` reads it.
        """
        written = self._written(self.key)
        return written if self.missing == "error" else {**written, "missing": self.missing}

    def _written(self, key: str) -> dict[str, Any]:
        ojs: dict[str, Any] = {"key": key}
        for name, number in _NUMBERS.items():
            if (value := getattr(self, name)) is not None:
                ojs[name] = number.kind.to_ojs(value)
        ojs["on_limit"] = self.on_limit
        return ojs

    def limit(self, key: str | None = None, *, private: bool = False) -> Limit:
        """Return this policy as a limit of ``key``; None means its own key."""
        key = self.key if key is None else key
        numbers = {
            number.name: number.kind.merged([getattr(self, word)])
            for word, number in _NUMBERS.items()
        }
        return Limit(key, on_limit=self.on_limit, private=private, **numbers)


def merge(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return one limit for each key, private ones first, sorted by key.

    It has the strictest of each number: the smallest count, every window that no other window
    implies, the widest spacing, and the largest amount. Its action is the first of ``drop``,
    ``reschedule`` and ``wait``. The result does not depend on the order of ``limits``.
    """
    by_key: dict[str, list[Limit]] = {}
    for limit in limits:
        by_key.setdefault(limit.key, []).append(limit)
    merged = (_strictest(key, same) for key, same in by_key.items())
    return tuple(sorted(merged, key=lambda limit: (not limit.private, limit.key)))


def check_keys(keys: Collection[str]) -> None:
    """Check the number of different keys of a task.

    Raises:
        PolicyInvalid: There are more than 16.
    """
    if len(keys) > MAX_LIMITS:
        raise PolicyInvalid(f"limits: expected at most {MAX_LIMITS} keys a task, got: {len(keys)}")


def _strictest(key: str, limits: list[Limit]) -> Limit:
    numbers = {
        name: number.kind.join(limit[name] for limit in limits) for name, number in NUMBERS.items()
    }
    return Limit(
        key,
        on_limit=max((limit.on_limit for limit in limits), key=ACTIONS.index),
        private=any(limit.private for limit in limits),
        **numbers,
    )


def _amount_problems(key: str, numbers: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong between how much a task takes and the number that it takes it of."""
    amounts = [name for name, number in _NUMBERS.items() if number.taken_of and numbers[name]]
    # A task has one slot of its queue and of its tenant, and one key has one lease of a task.
    if amounts and key.startswith(("queue:", "tenant:")):
        expected = "a key of its own, not that of a queue or a tenant"
        yield f"{amounts[0]}: expected {expected}, got: {key!r}"
    for name, number in _NUMBERS.items():
        taken = numbers[name]
        if not number.taken_of or taken is None:
            continue
        whole = numbers[number.taken_of]
        if whole is None:
            yield _lacks(name, number.taken_of)
        elif isinstance(taken, int) and taken > (most := getattr(whole, "limit", whole)):
            yield (
                f"{name}: expected at most the {number.taken_of} of the policy, {most}, "
                f"got: {taken}"
            )


def _lacks(name: str, taken_of: str) -> str:
    return f"{name}: expected a {taken_of} in the same policy, got: none"


def _with_place(where: str, problem: str) -> str:
    """Return a problem of a field, or of the whole policy (``: expected…``), after its place."""
    if problem.startswith(":"):
        return f"{where or 'rate_limit'}{problem}"
    return f"{where}.{problem}" if where else problem


def _fields_problem(key: str) -> str:
    return f"key: expected {KEY_EXPECTED}, without fields, got: {got(key)}"


def _of_job(obj: Any, problems: list[str]) -> Any:
    """Return the policy of a job in the form of the Open Job Spec; any other object unchanged."""
    options = obj.get("options") if isinstance(obj, Mapping) else None
    places = (obj, options) if isinstance(options, Mapping) else (obj,)
    found = [
        place["rate_limit"]
        for place in places
        if isinstance(place, Mapping) and place.get("rate_limit") is not None
    ]
    if len(found) == 2 and found[0] != found[1]:
        problems.append(
            "rate_limit: expected the same policy as options.rate_limit, or one of the two, "
            f"got: {got(found[0])}"
        )
    return found[0] if found else obj
