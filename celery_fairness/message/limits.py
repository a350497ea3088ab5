"""The limits of a message without its tenant's tier: declared, carried and scheduled.

A task declares policies, and a call may add some. The header carries them in the form of the Open
Job Spec, with keys that have no fields, and with ``private`` if a key contains the tenant. So a
program in any language can put the message, without the task's code.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from celery_fairness.config.fields import collect
from celery_fairness.config.key_templates import KeyValues
from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.numbers import AMOUNTS_OF_TASKS, ARGUMENT
from celery_fairness.config.policy import MAX_LIMITS, RateLimitPolicy, check_keys, merge
from celery_fairness.errors import (
    HeaderInvalid,
    KeyInvalid,
    KeyMissing,
    OnError,
    PolicyInvalid,
    ProblemsError,
    got,
    raise_it,
)

T = TypeVar("T")

#: The field of the header.
FIELD = "limits"
_LISTED = "expected a list of RateLimitPolicy, or of policies in the form of the Open Job Spec"


def read_policies(option: Any, on_error: OnError = raise_it) -> tuple[RateLimitPolicy, ...]:
    """Read the option ``limits`` of a task or of a call.

    Args:
        option: A list or tuple of :class:`~celery_fairness.config.policy.RateLimitPolicy` and of
            mappings in the form of the Open Job Spec. Keys may have fields.
        on_error: Called with one error for all invalid entries. If it returns, the result has the
            valid entries.

    Raises:
        PolicyInvalid: An entry is invalid, with one problem and its place for each.
    """
    if not isinstance(option, (list, tuple)):
        on_error(PolicyInvalid(f"limits: {_LISTED}, got: {got(option)}"))
        return ()
    policies, problems = _each(option, _read_policy)
    collect(problems, check_keys, {policy.key for policy in policies})
    if problems:
        on_error(PolicyInvalid(*problems))
    return tuple(policies)


def _each(entries: Iterable[Any], read: Callable[[Any, str], T]) -> tuple[list[T], list[str]]:
    """Return ``read(entry, place)`` of each valid entry, and the problems of the others."""
    made: list[T] = []
    problems: list[str] = []
    for index, entry in enumerate(entries):
        value = collect(problems, read, entry, f"{FIELD}[{index}]")
        if value is not None:
            made.append(value)
    return made, problems


def _read_policy(value: Any, where: str) -> RateLimitPolicy:
    if isinstance(value, RateLimitPolicy):
        return value
    return RateLimitPolicy.from_ojs(value, templates=True, where=where)


def to_wire(policy: RateLimitPolicy, values: KeyValues) -> dict[str, Any]:
    """Return a policy as a message carries it, with the key and the amounts of one task.

    Raises:
        KeyMissing: A field of the key, or an amount, has no value.
        KeyInvalid: A value cannot stand in a key, or is no amount.
    """
    key, private = policy.template.resolve(values)
    ojs = policy.to_ojs(key)
    for name, path in policy.amounts.items():
        ojs[name] = _amount(policy, name, path, values)
    return {**ojs, "private": True} if private else ojs


def _amount(policy: RateLimitPolicy, name: str, path: str, values: KeyValues) -> int:
    """Return how much one task takes of a key, from its argument at ``path``."""
    field = f"{ARGUMENT}{path}"
    try:
        value = values.argument(path)
    except Exception as error:
        problem = f"expected a value, got: {type(error).__name__}: {error}"
        raise KeyInvalid(problem[:500], values.task, policy.key, field) from error
    if value is None and policy.missing == "empty":
        return 1
    if value is None:
        raise KeyMissing(values.task, policy.key, field)
    try:
        return int(AMOUNTS_OF_TASKS[name].read(name, value))
    except ProblemsError as error:
        raise KeyInvalid(error.problems[0], values.task, policy.key, field) from None


def no_list(value: Any) -> HeaderInvalid:
    """Return the error of a field ``limits`` that is no list."""
    return HeaderInvalid(f"limits: expected a list of policies, got: {got(value)}")


def parse_limits(value: Any) -> tuple[Limit, ...]:
    """Read the field ``limits`` of a header. Limits with one key are merged.

    Args:
        value: A value that JSON can represent.

    Raises:
        HeaderInvalid: It is no list of policies, or has more than 16 keys.
    """
    if not isinstance(value, (list, tuple)):
        raise no_list(value)
    try:
        return _parse(json.dumps(value))
    except PolicyInvalid as error:
        raise HeaderInvalid("; ".join(error.problems)) from None


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[Limit, ...]:
    limits, problems = _each(json.loads(text), _parse_one)
    if problems:
        raise PolicyInvalid(*problems)
    check_keys({limit.key for limit in limits})
    return merge(limits)


def readable_limits(header: Any) -> tuple[Limit, ...]:
    """Return the valid limits of an invalid header.

    They still apply, because an invalid field or entry must not remove other limits. If there are
    more than 16 keys, the first 16 are kept.
    """
    value = header.get(FIELD) if isinstance(header, Mapping) else None
    if not isinstance(value, (list, tuple)):
        return ()
    limits, _ = _each(value, _parse_one)
    keys = list(dict.fromkeys(limit.key for limit in limits))[:MAX_LIMITS]
    return merge(limit for limit in limits if limit.key in keys)


def _parse_one(value: Any, where: str) -> Limit:
    private = False
    if isinstance(value, Mapping):
        private = value.get("private", False)
        value = {name: each for name, each in value.items() if name != "private"}
    if not isinstance(private, bool):
        raise PolicyInvalid(f"{where}.private: expected true or false, got: {got(private)}")
    return RateLimitPolicy.from_ojs(value, where=where).limit(private=private)
