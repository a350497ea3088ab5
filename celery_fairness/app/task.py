"""``FairTask``: a Celery task base class whose tasks obey their tenants' limits.

::

    @app.task(base=FairTask, tenant="user_id", service="analysis")
    def analyze(repository, user_id=None): ...

It adds to the class of the app's own tasks and takes nothing away: in a Django project
``delay_on_commit`` is there, and what a ``task_cls`` defines is too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Self

from celery.app import amqp
from celery.app.task import Context, Task

from celery_fairness.config.policy import RateLimitPolicy
from celery_fairness.errors import PolicyInvalid, RateLimitExceeded
from celery_fairness.message.headers import HEADER
from celery_fairness.message.limits import FIELD
from celery_fairness.message.task_options import (
    LimitSource,
    TenantOption,
    TenantSource,
    check_call,
    check_names,
    check_service,
)
from celery_fairness.wiring import find, wired
from celery_fairness.worker.attempt import current_attempt
from celery_fairness.worker.rate_limited import answer

#: Stands for a value that is known where a task is sent.
_UNTOLD = "eager"
#: Set while Celery sends what follows a task that has ended.
_FOLLOWING: ContextVar[bool] = getattr(amqp, "_callback_publish_retry")  # noqa: B009 - no stub has it


class FairTask(Task[Any, Any]):
    """A task that is charged to a tenant and holds one of the tenant's slots while it runs.

    Options of the decorator, beside Celery's own:

    Attributes:
        tenant: Where the tenant is in the arguments: a parameter's name (positional or keyword), a
            dotted path that begins with one (``"order.customer.id"``), or a callable
            ``(args, kwargs) -> str | None``. None: the message's header, or the task that sends
            it, says who it is.
        limits: Policies that hold for every task of this name, beside the tenant's tier. Each is a
            :class:`~celery_fairness.RateLimitPolicy` or a mapping in the form of the Open Job Spec.
            A call adds its own with ``apply_async(limits=[...])``.
        service: Base name of the queues ``{service}_priority``, ``_default`` and ``_scheduled``.
            None: not routed by tier.
        scheduled: Always goes to the scheduled queue, as what beat sends does.

    Raises:
        TaskDeclarationError: When the task is registered, where an option cannot work or is
            misspelled.
    """

    abstract = True
    #: It spends no retry.
    dont_autoretry_for = (RateLimitExceeded,)

    tenant: TenantOption = None
    limits: Sequence[RateLimitPolicy | Mapping[str, Any]] = ()
    service: str | None = None
    scheduled: bool = False

    #: Makes the limits of its messages.
    limit_source: LimitSource
    #: Reads the tenant from arguments; None where the task declares none.
    tenant_source: TenantSource | None = None

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Make the task of a class that also has what the app's own task class has."""
        app = cls.__dict__.get("app")
        own = app.Task if app is not None and cls.__dict__.get("_decorated") else None
        if own is not None and not issubclass(cls, own):
            same = {"__module__": cls.__module__, "__doc__": cls.__doc__, "app": app}
            cls = type(str(cls.__name__), (cls, own), same)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        name = self.name or f"{type(self).__module__}.{type(self).__qualname__}"
        check_names(name, _own_attributes(type(self)))
        check_service(name, self.service)
        # As it stands in the class: read from the task, a function would be bound to it.
        option: Any = inspect.getattr_static(self, "tenant")
        option = option.__func__ if isinstance(option, (staticmethod, classmethod)) else option
        if option is not None:
            self.tenant_source = TenantSource(name, option, self.run)
        limits = inspect.getattr_static(self, "limits")
        self.limit_source = LimitSource(name, limits, self.run)
        self.run: Any = _in_slot(self, self.run)

    @property
    def __trace__(self) -> Any:
        """The tracer that the pool runs: Celery's own, behind the gate."""
        return vars(self).get("_fair_tracer")

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        fairness = find(self.app)
        # What was claimed fairly holds its slot already.
        if tracer is not None and fairness is not None and not fairness.claims:
            tracer = fairness.gate.wrap(self, tracer)
        vars(self)["_fair_tracer"] = tracer

    def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
        """Prepare the task in a worker's main process.

        Raises:
            NotWired: The app has no ``Fairness``, so nobody would keep the limits.
        """
        from celery_fairness.worker.gated_request import fair_request

        fairness = wired(app)
        if not fairness.claims:
            self.Request: Any = fair_request(self.Request)
            fairness.consumer = consumer
        return super().start_strategy(app, consumer, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what Celery would call, had this class no ``__call__`` of its own.

        A tracer runs ``run`` directly. ``Task.__call__`` is for direct calls: it pushes a request
        of its own, under which an eager body would not find its id.
        """
        request: Any = self.request_stack.top
        traced = request is not None and not request.called_directly
        # Celery's own mark of a body that has begun.
        begun = traced and request._protected  # noqa: SLF001 - there is no other
        if traced and not begun and not _has_other_call(type(self)):
            request._protected = 1  # noqa: SLF001 - as its tracer does
            return self.run(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Send the task, charged to its tenant.

        What is wrong is raised where a caller sees it. In a retry, in what beat sends, and in what
        Celery sends after a task has ended (links, errbacks, the next of a chain, the body of a
        chord) it is logged, and the message is charged to the tenant ``_invalid``.

        Raises:
            TenantInvalid: The tenant is of a wrong type or too long.
            TenantMissing: There is none and ``no_tenant`` is ``"error"``.
            PolicyInvalid: A policy of the option ``limits`` is wrong.
            KeyMissing: A limit's key has a field for which the message has no value.
            KeyInvalid: Such a value cannot stand in a key.
            PolicyInvalid: An option of the call is a misspelling of ``limits``, or an option of the
                task that has no effect in a call.
            HeaderInvalid: The ``fairness`` header that was given cannot carry the limits.
            NotWired: The app has no ``Fairness``.
        """
        if self.app.conf.task_always_eager:
            self._check_eager(options, args or (), kwargs or {})
            return super().apply_async(
                args, kwargs, task_id, producer, link, link_error, shadow, **options
            )
        headers = dict(options.get("headers") or {})
        fairness = wired(self.app)
        strict = _is_called(options) and not fairness.stamp.by_beat(headers)
        if strict:
            check_call(self.name, options)
        # Routes that were set after the app was configured took the router's place.
        fairness.install_router()
        header = fairness.stamp.header(
            self.name,
            self,
            headers,
            args or (),
            kwargs or {},
            parent_headers(self.app),
            strict=strict,
        )
        if header is not None:
            if strict:
                # Elsewhere they stay: the signal before the publish takes them, and never raises.
                called = options.pop(FIELD, None)
                header = self.limit_source.of(
                    called,
                    header,
                    args or (),
                    kwargs or {},
                    lambda: self._queue(args, kwargs, options),
                )
            options["headers"] = {**headers, HEADER: header}
        return super().apply_async(
            args, kwargs, task_id, producer, link, link_error, shadow, **options
        )

    def _check_eager(self, options: dict[str, Any], args: Any, kwargs: Any) -> None:
        """Find what sending would find wrong: nothing is sent, and no Redis is asked."""
        called = options.pop(FIELD, None)
        if not _is_called(options):
            return
        check_call(self.name, options)
        header = (options.get("headers") or {}).get(HEADER)
        if header is None:
            source = self.tenant_source
            tenant = None if source is None else source.read(args, kwargs)
            if tenant is None and self.app.current_worker_task is not None:
                # Its parent's would be taken, which eager tasks do not say.
                tenant = _UNTOLD
            header = {} if tenant is None else {"tenant": tenant}
        if isinstance(header, Mapping) and header.get("tenant"):
            header = {"tier": _UNTOLD, **header}
        self.limit_source.of(called, header, args, kwargs, lambda: _UNTOLD)

    def _queue(self, args: Any, kwargs: Any, options: Any) -> str | None:
        """Return where a message will go, None where no queue has a name."""
        router: Any = self.app.amqp.router
        routed: dict[str, Any] = router.route(dict(options), self.name, args, kwargs, self)
        queue = routed.get("queue")
        return routed.get("routing_key") if queue is None else queue.name

    def signature_from_request(
        self,
        request: Context | None = None,
        args: Any = None,
        kwargs: Any = None,
        queue: str | None = None,
        **extra_options: Any,
    ) -> Any:
        """Make the signature of a retry; a tenant whose tier changed moves queue with it."""
        request = self.request if request is None else request
        fairness = find(self.app)
        if queue is None and fairness is not None:
            current = (request.delivery_info or {}).get("routing_key")
            queue = fairness.router.again(self, current, request.headers or {})
        return super().signature_from_request(request, args, kwargs, queue, **extra_options)


def parent_headers(app: Any) -> Any:
    """Return the headers of the task that is running here, None outside a task."""
    parent = app.current_worker_task
    return None if parent is None else parent.request.headers or {}


def _is_called(options: Mapping[str, Any]) -> bool:
    """Say whether ``apply_async`` was called by somebody who sees its errors, and not by Celery.

    A retry must not be lost to what was wrong from the start. What follows a task that has ended
    must not make a failure of it: links, errbacks and the next of a chain name their parent, which
    callers leave to Celery; bodies of chords have Celery's own mark.
    """
    return not (options.get("retries") or options.get("parent_id") or _FOLLOWING.get())


def follows(app: Any, name: str, headers: Mapping[str, Any], body: Any) -> bool:
    """Say whether a message that leaves is of a task that was accepted before, or follows one.

    A task that runs here sends itself again under its own id. Celery marks links, the next of a
    chain and bodies of chords. Of an errback it says no more than of what a body sends: one that is
    sent beside a task names its parent; in a pool it is a task that the one which runs has as an
    errback.
    """
    if _FOLLOWING.get() or (isinstance(body, Mapping) and body.get("retries")):
        return True
    parent = app.current_worker_task
    if parent is None:
        return bool(headers.get("parent_id"))
    if headers.get("id") == parent.request.id:
        return True
    errbacks = parent.request.errbacks or ()
    return any(isinstance(each, Mapping) and each.get("task") == name for each in errbacks)


def not_kept(task: Any) -> PolicyInvalid | None:
    """Return the error of limits that a broker which does not claim fairly is sent for ``task``.

    Its workers keep them for tasks behind the gate; whether one is that they alone may know.
    """
    if task is None or isinstance(task, FairTask):
        return None
    return PolicyInvalid(
        "limits: expected base=FairTask, or a broker at fairredis://, for somebody to keep them, "
        f"got: a task of {type(task).__mro__[1].__name__}"
    )


def _own_attributes(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield what the decorator and the classes of users add to FairTask, but for their methods."""
    # Reading 'app' of a class binds it; of a task whose base is bound Celery reads no annotations.
    known = set(dir(FairTask))
    for each in cls.__mro__[: cls.__mro__.index(FairTask)]:
        # Celery makes a class of what the decorator is given.
        decorated = "_decorated" in vars(each)
        for name, value in vars(each).items():
            if name not in known and (decorated or not hasattr(value, "__get__")):
                yield name, value


def _has_other_call(cls: type) -> bool:
    """Say whether a class behind FairTask, such as the app's ``task_cls``, has a ``__call__``."""
    behind = cls.__mro__[cls.__mro__.index(FairTask) + 1 :]
    return any("__call__" in vars(c) for c in behind if c not in (Task, object))


def _in_slot(task: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``body`` so that its attempt's slot ends with it, and a 429 is answered.

    It stands in the place of ``run``, inside what Celery puts around that for ``autoretry_for``: so
    the error of a limiter that is away is retried as the body's own, and a 429 is not, whatever a
    user's options and ``__call__`` say.
    """

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        attempt = current_attempt.get()
        if attempt is not None and not attempt.begin(task):
            attempt = None
        try:
            try:
                if attempt is not None and attempt.error is not None:
                    raise attempt.error
                return body(*args, **kwargs)
            finally:
                if attempt is not None:
                    attempt.end()
        except RateLimitExceeded as error:
            told = answer(task, error)
            if told is error:
                raise
            raise told from error

    return run
