"""What a FairTask declares: where its tenant is in the arguments, and its service.

Checked when the task is registered, so that a misspelled parameter is an error then and not a task
that nobody is charged for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_fairness.errors import TaskDeclarationError, TenantInvalid, got
from celery_fairness.tenants import normalise
from celery_fairness.tiers import SERVICE_EXPECTED, is_service_name

TenantOption = str | Callable[[Sequence[Any], Mapping[str, Any]], Any] | None

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class TenantSource:
    """Reads a task's tenant from its arguments.

    Args:
        task: The task's name, for messages.
        option: A parameter's name, a dotted path that begins with one, or a callable
            ``(args, kwargs) -> tenant``.
        body: The task's function; its signature says where the parameter stands.

    Raises:
        TaskDeclarationError: There is no such parameter, or the option is of another type.
    """

    def __init__(self, task: str, option: TenantOption, body: Callable[..., Any]) -> None:
        self.task = task
        self.parameter = option if isinstance(option, str) else "tenant="
        self._call = option if callable(option) else None
        self._name = ""
        self._path: tuple[str, ...] = ()
        self._position = -1
        self._default: Any = None
        if self._call is None:
            self._find(option, body)

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return the tenant, None where there is none.

        Raises:
            TenantInvalid: The value cannot be a tenant, or the callable raised.
        """
        try:
            return normalise(self._value(args, kwargs))
        except TenantInvalid as error:
            raise TenantInvalid(error.problem, self.task, self.parameter) from None
        except Exception as error:
            problem = f"expected a value, got: {type(error).__name__}: {error}"
            raise TenantInvalid(problem[:500], self.task, self.parameter) from error

    def _find(self, option: Any, body: Callable[..., Any]) -> None:
        if not isinstance(option, str) or not option:
            raise TaskDeclarationError(
                self.task,
                "tenant",
                "expected a parameter's name, a dotted path or a callable (args, kwargs), "
                f"got: {got(option)}",
            )
        self._name, *path = option.split(".")
        self._path = tuple(path)
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
                self.task,
                "tenant",
                f"expected one of the task's parameters ({names}), got: {self._name!r}",
            )

    def _value(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._call is not None:
            return self._call(args, kwargs)
        if self._name in kwargs:
            value = kwargs[self._name]
        elif 0 <= self._position < len(args):
            value = args[self._position]
        else:
            value = self._default
        for step in self._path:
            if value is None:
                return None
            value = value.get(step) if isinstance(value, Mapping) else getattr(value, step)
        return value


def service_of(task: Any) -> str | None:
    """Return the service of a FairTask; an attribute of that name on another task is not ours."""
    return task.service if hasattr(task, "tenant_source") else None


def check_service(task: str, service: Any) -> None:
    """Check the option ``service`` of a task.

    Raises:
        TaskDeclarationError: It is neither None nor a name that queues can have.
    """
    if service is not None and not is_service_name(service):
        raise TaskDeclarationError(
            task, "service", f"{SERVICE_EXPECTED} (queue names are made from it), got: {service!r}"
        )
