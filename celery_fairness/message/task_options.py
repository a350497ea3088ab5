"""The options of a FairTask: its tenant, limits and service.

They are checked when the task is registered. So a misspelled parameter is an error at that time,
and not a task without a tenant or without one of its limits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from celery_fairness.config.key_templates import KeyTemplate, KeyValues
from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.policy import MAX_LIMITS, RateLimitPolicy, check_keys, merge
from celery_fairness.config.tenants import normalise
from celery_fairness.config.tiers import NAME, queues_of
from celery_fairness.errors import (
    FairnessError,
    HeaderInvalid,
    OnError,
    PolicyInvalid,
    TaskDeclarationError,
    TenantInvalid,
    got,
    misspelled,
    raise_it,
)
from celery_fairness.message.headers import Header, check_size, extended
from celery_fairness.message.limits import FIELD, no_list, read_policies, to_wire

TenantOption = str | Callable[[Sequence[Any], Mapping[str, Any]], Any] | None

#: The options of a FairTask. An attribute is a misspelled option only if it has this type.
OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "tenant": object,
    "limits": object,
    "service": str,
    "scheduled": bool,
    "unique": str,
    "on_duplicate": str,
    "debounce": (int, float),
    "debounce_at_most": (int, float),
}

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ArgumentSource:
    """Reads one argument of a task, or a value inside it by a dotted path.

    Args:
        task: The task's name, for messages.
        path: A parameter's name, or a dotted path that begins with one.
        body: The task's function, whose signature gives the parameter's position.
        option: The option of the task that names the argument, for messages.
        within: The part of the option that names it, for messages: ``"key 'a:{args.b}': "``.

    Raises:
        TaskDeclarationError: There is no such parameter.
    """

    def __init__(
        self, task: str, path: str, body: Callable[..., Any], option: str, within: str = ""
    ) -> None:
        self._name, *steps = path.split(".")
        self._steps = tuple(steps)
        self._position = -1
        self._default: Any = None
        parameters = inspect.signature(body).parameters
        parameter = parameters.get(self._name)
        if parameter is not None and parameter.kind in _BY_NAME:
            self._default = None if parameter.default is parameter.empty else parameter.default
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                self._position = list(parameters).index(self._name)
        elif parameter is not None or not any(
            p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
        ):
            names = ", ".join(n for n, p in parameters.items() if p.kind in _BY_NAME) or "none"
            raise TaskDeclarationError(
                task,
                option,
                f"{within}expected one of the task's parameters ({names}), got: {self._name!r}",
            )

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value; None if the argument, its default or a mapping's key is absent.

        Raises:
            AttributeError: An object on the path lacks the attribute. A property may raise other
                errors.
        """
        if self._name in kwargs:
            value = kwargs[self._name]
        elif 0 <= self._position < len(args):
            value = args[self._position]
        else:
            value = self._default
        for step in self._steps:
            if value is None:
                return None
            value = value.get(step) if isinstance(value, Mapping) else getattr(value, step)
        return value


class TenantSource:
    """Reads a task's tenant from its arguments.

    Args:
        task: The task's name, for messages.
        option: A parameter's name, a dotted path that begins with one, or a callable
            ``(args, kwargs) -> tenant``.
        body: The task's function, whose signature gives the parameter's position.

    Raises:
        TaskDeclarationError: There is no such parameter, or the option is of another type.
    """

    def __init__(self, task: str, option: TenantOption, body: Callable[..., Any]) -> None:
        self.task = task
        self.parameter = option if isinstance(option, str) else "tenant="
        self._value: Callable[[Sequence[Any], Mapping[str, Any]], Any]
        if callable(option):
            self._value = option
        elif isinstance(option, str) and option:
            self._value = ArgumentSource(task, option, body, "tenant").read
        else:
            raise TaskDeclarationError(
                task,
                "tenant",
                "expected a parameter's name, a dotted path or a callable (args, kwargs), "
                f"got: {got(option)}",
            )

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return the tenant; None if there is none.

        Raises:
            TenantInvalid: The value cannot be a tenant, or the callable raised an error.
        """
        try:
            return normalise(self._value(args, kwargs))
        except TenantInvalid as error:
            raise TenantInvalid(error.problem, self.task, self.parameter) from None
        except Exception as error:
            problem = f"expected a value, got: {type(error).__name__}: {error}"
            raise TenantInvalid(problem[:500], self.task, self.parameter) from error


def argument_sources(
    task: str, named: Iterable[tuple[str, str]], body: Callable[..., Any], option: str = FIELD
) -> dict[str, ArgumentSource]:
    """Return a reader for each argument that an option of a task names, by its path.

    ``named`` has the path of each argument, and where the option names it.

    Raises:
        TaskDeclarationError: A path names no parameter of the task.
    """
    return {path: ArgumentSource(task, path, body, option, f"{where}: ") for path, where in named}


def arguments_of(template: KeyTemplate) -> Iterator[tuple[str, str]]:
    """Yield the path of each argument in a key, and where it is."""
    for path in template.arguments:
        yield path, f"key {template.text!r}"


def _arguments(policy: RateLimitPolicy) -> Iterator[tuple[str, str]]:
    """Yield the path of each argument that a policy names, and where it names it."""
    yield from arguments_of(policy.template)
    for name, path in policy.amounts.items():
        yield path, f"key {policy.key!r}: {name}"


class LimitSource:
    """Makes the limits of a task's messages.

    Args:
        task: The task's name, for messages.
        option: Its option ``limits``.
        body: The task's function, whose signature gives the positions of arguments. If it is None,
            keys must not have arguments.

    Raises:
        TaskDeclarationError: A policy is invalid, or names an argument that the task lacks.
    """

    def __init__(self, task: str, option: Any, body: Callable[..., Any] | None) -> None:
        self._task = task
        self._body = body
        try:
            self._declared = read_policies(option)
        except PolicyInvalid as error:
            problem = "; ".join(p.removeprefix("limits: ") for p in error.problems)
            raise TaskDeclarationError(task, FIELD, problem) from None
        self._sources = self._sources_of(self._declared)

    @property
    def declares(self) -> bool:
        """Whether the task declares limits."""
        return bool(self._declared)

    def of_one_partition(self) -> list[str]:
        """Return the declared keys of several tenants whose limits hold in one partition alone."""
        return [
            each.key
            for each in self._declared
            if "tenant" not in each.template.fields and not each.limit(each.key).spans_partitions
        ]

    def fixed(self) -> list[Limit]:
        """Return the declared limits whose keys depend only on the task's name."""
        values = KeyValues(task=self._task)
        return [
            each.limit(each.template.resolve(values)[0])
            for each in self._declared
            if {"task"}.issuperset(each.template.fields)
        ]

    def of(
        self,
        called: Any,
        header: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        queue: Callable[[], str | None],
        on_error: OnError = raise_it,
    ) -> Any:
        """Return the ``fairness`` header of one message with its limits.

        Args:
            called: The option ``limits`` of the call, added to the declared limits. None if the
                call has none.
            header: The header so far. If it has limits, the message was sent before, and they
                replace the declared ones.
            args: Positional arguments.
            kwargs: Keyword arguments.
            queue: Returns the message's queue. It is called only if a key needs the queue.
            on_error: Called with each error. If it returns, the header gets all valid limits.

        Raises:
            KeyMissing: A field of a key has no value.
            KeyInvalid: A value cannot stand in a key.
            PolicyInvalid: The call's option is invalid, or there are more than 16 keys.
            HeaderInvalid: The header is no object, its limits are no list, or it is too long.
            TaskDeclarationError: The call's policies name an argument that the task lacks.
        """
        if called is None and not self._declared:
            return header
        added = () if called is None else read_policies(called, on_error)
        header, carried = _opened(header, on_error)
        policies = (*self._declared, *added) if carried is None else added
        if not policies:
            return header
        made = self._made(policies, header, args, kwargs, queue, on_error)
        limits = [*(carried or ()), *made]
        header = extended(header, **{FIELD: limits})
        try:
            check_keys({each["key"] for each in limits if _has_key(each)})
            if len(limits) > MAX_LIMITS:
                # 16 limits always fit. Any number of limits may have the same key.
                check_size(header)
        except FairnessError as error:
            on_error(error)
        return header

    def _made(
        self,
        policies: Sequence[RateLimitPolicy],
        header: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        queue: Callable[[], str | None],
        on_error: OnError,
    ) -> list[dict[str, Any]]:
        """Return policies as a message carries them, without those that have no valid key."""
        routed = queue() if any("queue" in each.template.fields for each in policies) else None
        made: list[dict[str, Any]] = []
        for each in policies:
            try:
                known = each in self._declared
                sources = self._sources if known else self._sources_of([each])
                tenant, tier = header.get("tenant"), header.get("tier")
                reader = partial(_read, sources, args, kwargs)
                made.append(to_wire(each, KeyValues(self._task, routed, tenant, tier, reader)))
            except FairnessError as error:
                on_error(error)
        return made

    def _sources_of(self, policies: Iterable[RateLimitPolicy]) -> dict[str, ArgumentSource]:
        if self._body is not None:
            named = (each for policy in policies for each in _arguments(policy))
            return argument_sources(self._task, named, self._body)
        for policy in policies:
            if policy.template.arguments or policy.amounts:
                kind = "keys" if policy.template.arguments else "amounts"
                raise PolicyInvalid(
                    f"task {self._task}: limits: expected {kind} without arguments, as this "
                    f"process does not know the task's parameters, got: {got(policy.key)}"
                )
        return {}


def _read(
    sources: Mapping[str, ArgumentSource],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    path: str,
) -> Any:
    return sources[path].read(args, kwargs)


def _has_key(limit: Any) -> bool:
    return isinstance(limit, Mapping) and isinstance(limit.get("key"), str)


def _opened(header: Any, on_error: OnError) -> tuple[Mapping[str, Any], Sequence[Any] | None]:
    """Return a header to which limits can be added, and its limits; None if it has none.

    If the header or its limits are invalid and ``on_error`` returns, the result has no limits.
    """
    if not isinstance(header, Mapping):
        on_error(HeaderInvalid(f"expected an object, to put limits into, got: {got(header)}"))
        return Header().to_wire(), None
    carried = header.get(FIELD)
    if FIELD in header and not isinstance(carried, (list, tuple)):
        on_error(no_list(carried))
        return header, None
    return header, carried


def source_of(task: Any) -> LimitSource | None:
    """Return the LimitSource of a FairTask; None for another task."""
    source = getattr(task, "limit_source", None)
    return source if isinstance(source, LimitSource) else None


def declared_limits(tasks: Iterable[Any]) -> list[Limit]:
    """Return the limit of each key that tasks declare without their arguments, by key."""
    sources = filter(None, map(source_of, tasks))
    limits = merge(limit for source in sources for limit in source.fixed())
    return sorted(limits, key=lambda limit: limit.key)


def ignored_options(task: Any) -> tuple[str, ...]:
    """Return the options of a FairTask that a task of another class has. They have no effect.

    If the task's base class has an attribute of this name, as FairTask has, the option is meant for
    that class.
    """
    own, parent = vars(type(task)), type(task).__mro__[1]
    # Celery makes a class from the decorator's options. In a user's class a method is no option.
    decorated = "_decorated" in own
    return tuple(
        name
        for name, kind in OPTIONS.items()
        if isinstance(value := own.get(name), kind)
        and value
        and (decorated or not hasattr(value, "__get__"))
        and not hasattr(parent, name)
    )


def service_of(task: Any) -> str | None:
    """Return the service of a FairTask; None for another task, also if it has such an attribute."""
    return task.service if hasattr(task, "tenant_source") else None


def check_names(task: str, given: Iterable[tuple[str, Any]]) -> None:
    """Check that no attribute of a task is a misspelled option.

    Celery accepts any attribute, so a misspelled option would silently have no effect.

    Args:
        task: The task's name, for messages.
        given: Name and value of each attribute that is neither Celery's nor ours.

    Raises:
        TaskDeclarationError: An attribute is a misspelled option.
    """
    for name, value in given:
        near = misspelled(name, tuple(OPTIONS))
        if near and isinstance(value, OPTIONS[near]):
            raise TaskDeclarationError(
                task,
                name,
                f"expected one of {', '.join(OPTIONS)}, or a name less like these, got: {name!r}, "
                f"did you mean {near!r}?",
            )


def check_call(task: str, options: Mapping[str, Any]) -> None:
    """Check that a call has no option of FairTask except ``limits``, and no misspelled one.

    Celery would make a message property of it, which silently has no effect.

    Raises:
        PolicyInvalid: The call has such an option.
    """
    name = misplaced(options, options.get("stamped_headers"), tuple(OPTIONS))
    if name is None:
        return
    hint = "did you mean 'limits'?"
    if misspelled(name, (FIELD,)) is None:
        hint = (
            "which is an option of the task; name a call's own tenant or service in "
            "headers={'fairness': {'v': 1, 'tenant': …}}"
        )
    raise PolicyInvalid(
        f"task {task}: expected the option 'limits' of a call, got: {name!r}, {hint}"
    )


def misplaced(options: Mapping[str, Any], stamps: Any, known: tuple[str, ...]) -> str | None:
    """Return an option of a call that equals or misspells one of ``known``; None if there is none.

    Args:
        options: The call's options by name.
        stamps: Names that the caller has stamped. These may have any name.
        known: Names of options of a FairTask. The correct name ``limits`` is never returned.
    """
    free = stamps if isinstance(stamps, (list, tuple, set)) else ()
    for name in options:
        if name != FIELD and name not in free and (name in known or misspelled(name, known)):
            return name
    return None


def check_service(task: str, service: Any) -> None:
    """Check the option ``service`` of a task.

    Raises:
        TaskDeclarationError: It is neither None nor a valid part of a queue's name.
    """
    if service is not None and not NAME.accepts(service):
        raise TaskDeclarationError(
            task,
            "service",
            f"expected {NAME.expected} (queue names are made from it), got: {service!r}",
        )


def service_queues(app: Any) -> list[str]:
    """Return the queues of the services that the app's tasks name."""
    services = {service for task in app.tasks.values() if (service := service_of(task))}
    return [name for service in sorted(services) for name in queues_of(service)]
