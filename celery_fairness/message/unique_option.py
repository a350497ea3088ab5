"""The options ``unique``, ``on_duplicate`` and ``debounce`` of a FairTask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery_fairness.config.key_templates import KeyTemplate, KeyValues
from celery_fairness.errors import (
    FairnessError,
    OnError,
    PolicyInvalid,
    TaskDeclarationError,
    raise_it,
)
from celery_fairness.message.headers import extended
from celery_fairness.message.task_options import argument_sources, arguments_of
from celery_fairness.message.unique import (
    DROP,
    EXISTING,
    FIELD,
    ON_DUPLICATE,
    REPLACE,
    SECONDS,
    Unique,
)

#: Options of a call that name what follows its task. The existing task would not have them.
_FOLLOWED = ("group_id", "chord", "chain", "link", "link_error")


class UniqueSource:
    """Makes the unique key of a task's messages.

    Args:
        task: The task's name, for messages.
        option: Its option ``unique``, a key template.
        on_duplicate: Its option ``on_duplicate``.
        debounce: Its option ``debounce``, in seconds. None: its tasks start at once.
        debounce_at_most: Its option ``debounce_at_most``, in seconds. None: without a bound.
        body: The task's function, whose signature gives the positions of arguments.

    Raises:
        TaskDeclarationError: An option is invalid, or has no effect beside the others.
    """

    def __init__(
        self,
        task: str,
        option: Any,
        on_duplicate: Any,
        debounce: Any,
        debounce_at_most: Any,
        body: Callable[..., Any],
    ) -> None:
        self._task = task
        self._on_duplicate = on_duplicate
        self.debounce_seconds = debounce
        self._at_most_seconds = debounce_at_most or 0
        self._check("on_duplicate", ON_DUPLICATE.problems("", on_duplicate))
        for name, seconds in (("debounce", debounce), ("debounce_at_most", debounce_at_most)):
            self._check(name, [] if seconds is None else SECONDS.problems("", seconds))
        if debounce is not None and on_duplicate != REPLACE:
            self._check("debounce", [f": expected on_duplicate='replace', got: {on_duplicate!r}"])
        if debounce_at_most is not None and debounce is None:
            self._check("debounce_at_most", [": expected debounce= beside it, got: None"])
        if debounce_at_most is not None and debounce_at_most < debounce:
            least = f": expected at least the seconds of debounce, {debounce}"
            self._check("debounce_at_most", [f"{least}, got: {debounce_at_most}"])
        if option in (None, ""):
            self._check(
                FIELD, [f": expected a key such as 'sync:{{args.account}}', got: {option!r}"]
            )
        try:
            self._template = KeyTemplate(option)
        except PolicyInvalid as error:
            self._check(FIELD, list(error.problems))
        arguments = argument_sources(task, arguments_of(self._template), body, FIELD)
        self._read = partial(_argument, arguments)

    def _check(self, option: str, problems: Sequence[str]) -> None:
        if problems:
            texts = (each.partition(": ")[2] for each in problems)
            raise TaskDeclarationError(self._task, option, "; ".join(texts))

    def of_one_partition(self) -> list[str]:
        """Return the key, if tasks of several tenants may have it."""
        return [] if "tenant" in self._template.fields else [self._template.text]

    def of(
        self,
        header: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        queue: Callable[[], str | None],
        on_error: OnError = raise_it,
        *,
        has_caller: bool = True,
    ) -> Any:
        """Return the ``fairness`` header of one message with its unique key.

        Args:
            header: The header so far. One with a unique key is returned as it is, because the
                message was sent before.
            args: Positional arguments.
            kwargs: Keyword arguments.
            queue: Returns the message's queue. It is called only if the key needs the queue.
            on_error: Called with an error. If it returns, the message has no unique key.
            has_caller: Whether a caller gets the task that exists. Otherwise ``existing`` is
                ``drop``.

        Raises:
            KeyMissing: A field of the key has no value.
            KeyInvalid: A value cannot stand in a key.
        """
        if not isinstance(header, Mapping) or FIELD in header:
            return header
        needs_queue = "queue" in self._template.fields
        tenant, tier = header.get("tenant"), header.get("tier")
        routed = queue() if needs_queue else None
        values = KeyValues(
            self._task, routed, tenant, tier, lambda path: self._read(path, args, kwargs)
        )
        try:
            key, _ = self._template.resolve(values)
        except FairnessError as error:
            on_error(error)
            return header
        alone = self._on_duplicate == EXISTING and not has_caller
        made = Unique(key, DROP if alone else self._on_duplicate, self._at_most_seconds)
        return extended(header, **{FIELD: made.to_wire()})

    def check_call(self, options: Mapping[str, Any]) -> None:
        """Check that a call may get another task than its own.

        Raises:
            TaskDeclarationError: Something follows the call's own task, such as a link.
        """
        followed = next((name for name in _FOLLOWED if options.get(name)), None)
        if self._on_duplicate == EXISTING and followed is not None:
            raise TaskDeclarationError(
                self._task,
                "on_duplicate",
                "expected 'drop' or 'replace', because the existing task would not have the "
                f"{followed!r} of this call, got: 'existing'",
            )


def _argument(
    sources: Mapping[str, Any], path: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    return sources[path].read(args, kwargs)


def unique_source_of(task: Any) -> UniqueSource | None:
    """Return the UniqueSource of a FairTask; None for another task or one that is not unique."""
    source = getattr(task, "unique_source", None)
    return source if isinstance(source, UniqueSource) else None
