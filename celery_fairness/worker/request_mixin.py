"""A mixin for the ``Request`` class of every task: what the claimed and the gated request share.

Celery derives a class from the ``Request`` of each task, and overrides methods in it. These do not
call the bases, so the mixin wraps them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from celery.utils.imports import symbol_by_name

from celery_fairness.worker.captured_message import Received

if TYPE_CHECKING:
    _Request = Any
else:
    _Request = object


class RequestMixin(_Request):
    """Stands before the request class of a task."""

    #: By name, the wrappers of methods of a mixin and of the classes that Celery derives from it.
    wrappers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in cls.wrappers.keys() & vars(cls).keys():
            setattr(cls, name, cls.wrappers[name](vars(cls)[name]))

    def __init__(self, message: Any, *args: Any, **options: Any) -> None:
        super().__init__(message, *args, **options)
        self._request_dict["properties"] = Received(message)

    @classmethod
    @functools.cache
    def before(cls, request: Any) -> type[Self]:
        """Return the class ``request``, or the class with that name, behind this mixin."""
        behind: type = symbol_by_name(request)
        if issubclass(behind, cls):
            return behind
        name = cls.__name__.removesuffix("Mixin").removesuffix("Request") + behind.__name__
        return type(name, (cls, behind), {"__module__": behind.__module__})


def failure_of(exc_info: Any) -> Any:
    """Return the exception with which an attempt ended."""
    exception = exc_info.exception
    return getattr(exception, "exc", None) or exception
