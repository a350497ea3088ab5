"""``FairTask``: a Celery task base class whose tasks obey their tenants' limits.

::

    @app.task(base=FairTask, tenant="user_id", service="analysis")
    def analyze(repository, user_id=None): ...

It adds to the class of the app's own tasks and removes nothing: a Django project keeps
``delay_on_commit``, and an app keeps the methods of its ``task_cls``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from celery import bootsteps
from celery.app.task import Context, Task

from celery_fairness.compat.celery_app import is_following
from celery_fairness.config.policy import RateLimitPolicy
from celery_fairness.errors import (
    PolicyInvalid,
    RateLimitExceeded,
    TaskDeclarationError,
    TaskExists,
)
from celery_fairness.message.headers import HEADER, headers_of
from celery_fairness.message.limits import FIELD
from celery_fairness.message.stamp import Message
from celery_fairness.message.task_options import (
    LimitSource,
    TenantOption,
    TenantSource,
    check_call,
    check_names,
    check_service,
)
from celery_fairness.message.unique import DROP
from celery_fairness.message.unique_option import UniqueSource
from celery_fairness.wiring import find, wired
from celery_fairness.worker.attempt import current_attempt, outcome_of
from celery_fairness.worker.captured_message import retry_options
from celery_fairness.worker.rate_limited import after_rate_limit

#: In an eager call: a stand-in for a value that only a real publish determines.
_PLACEHOLDER = "eager"
_SIGNATURE = inspect.signature(Task.apply_async)
#: The parameters of ``apply_async`` that a caller may give by position.
_PARAMETERS = ("args", "kwargs", "task_id", "producer", "link", "link_error", "shadow")
if TYPE_CHECKING:
    _Task = Task[Any, Any]
else:
    _Task = Task


class FairTask(_Task):
    """A task that is charged to a tenant and holds one of the tenant's slots while it runs.

    Options of the decorator, in addition to Celery's own:

    Attributes:
        tenant: The place of the tenant in the arguments. Either a parameter's name (positional or
            keyword), a dotted path that begins with one (``"order.customer.id"``), or a callable
            ``(args, kwargs) -> str | None``. With None the tenant comes from the message's header
            or from the task that sends it.
        limits: Policies that hold for every task of this name, in addition to the tenant's tier.
            Each is a :class:`~celery_fairness.RateLimitPolicy` or a mapping in the form of the
            Open Job Spec. A call adds its own with ``apply_async(limits=[...])``.
        service: Base name of the queues ``{service}_priority``, ``_default`` and ``_scheduled``.
            None: not routed by tier.
        scheduled: Whether every message goes to the scheduled queue, as messages of beat do.
        unique: Template of a key, such as ``"sync:{args.account}"``. Of all accepted tasks with
            one key, at most one has not ended. Only ``fairredis`` acts by it. None: not unique.
        on_duplicate: ``"drop"``: a new task ends at once, with :class:`DuplicateTask` as its
            result. ``"replace"``: a waiting task ends with this error, and the new one waits. A
            running task continues. ``"existing"``: ``apply_async`` sends nothing and returns the
            result of the task that exists.
        debounce: With ``on_duplicate="replace"``, the seconds that a task waits for a newer one
            with its key. A call with ``countdown`` or ``eta`` has its own time.
        debounce_at_most: The seconds after the first call, after which no further call delays the
            task. None: each call delays it.

    Raises:
        TaskDeclarationError: At registration, if an option cannot work or is misspelled.
    """

    abstract = True
    #: A rejection spends no retry.
    dont_autoretry_for = (RateLimitExceeded,)

    tenant: TenantOption = None
    limits: Sequence[RateLimitPolicy | Mapping[str, Any]] = ()
    service: str | None = None
    scheduled: bool = False
    unique: str | None = None
    debounce: float | None = None
    debounce_at_most: float | None = None

    #: Makes the limits of this task's messages.
    limit_source: LimitSource
    #: Reads the tenant from arguments; None if the task declares no tenant.
    tenant_source: TenantSource | None = None
    #: Makes the unique key of this task's messages; None if the task declares none.
    unique_source: UniqueSource | None = None

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Make the task from a class that also inherits from the app's own task class."""
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
        # Read from the class: an attribute of the task would be a bound method.
        option: Any = inspect.getattr_static(self, "tenant")
        option = option.__func__ if isinstance(option, (staticmethod, classmethod)) else option
        if option is not None:
            self.tenant_source = TenantSource(name, option, self.run)
        limits = inspect.getattr_static(self, "limits")
        self.limit_source = LimitSource(name, limits, self.run)
        # A base class of another package may have a method of this name, so this class has none.
        on_duplicate = inspect.getattr_static(self, "on_duplicate", DROP)
        on_duplicate = DROP if callable(on_duplicate) else on_duplicate
        unique = (on_duplicate, self.debounce, self.debounce_at_most)
        if self.unique is not None or unique != (DROP, None, None):
            self.unique_source = UniqueSource(name, self.unique, *unique, self.run)
        self.run: Any = _in_slot(self, self.run)

    @property
    def __trace__(self) -> Any:
        """The tracer that the pool runs: Celery's own, behind the gate."""
        return vars(self).get("_fair_tracer")

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        fairness = find(self.app)
        # A claimed task already holds its slot, so it needs no gate.
        if tracer is not None and fairness is not None and not fairness.claims_fairly:
            tracer = fairness.gate.wrap(self, tracer)
        vars(self)["_fair_tracer"] = tracer

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Make a worker of ``app`` fail at once if it has no ``Fairness``."""
        super().on_bound(app)
        app.steps["worker"].add(_Wired)

    def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
        """Prepare the task in a worker's main process.

        Raises:
            NotWired: The app has no ``Fairness``, so nothing would enforce the limits.
        """
        from celery_fairness.worker.gate.gated_request import GatedRequestMixin

        fairness = wired(app)
        check_unique(self, fairness)
        if not fairness.claims_fairly:
            self.Request: Any = GatedRequestMixin.before(self.Request)
            fairness.consumer = consumer
        return super().start_strategy(app, consumer, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method that Celery would call if this class had no ``__call__``.

        A tracer runs ``run`` directly. ``Task.__call__`` is for direct calls. It pushes a request
        of its own, and an eager body would not find its id there.
        """
        request: Any = self.request_stack.top
        traced = request is not None and not request.called_directly
        # Celery's own mark of a body that has begun.
        begun = traced and request._protected  # noqa: SLF001 - there is no other
        if traced and not begun and not _has_other_call(type(self)):
            request._protected = 1  # noqa: SLF001 - as its tracer does
            return self.run(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def apply_async(self, *given: Any, **options: Any) -> Any:
        """Send the task, charged to its tenant.

        The parameters are those of Celery's ``Task.apply_async``, and ``limits``. The next class
        gets what the caller gave: ``args`` and ``kwargs`` in the caller's form, the rest as
        keywords. Many classes override it as ``apply_async(self, args=None, kwargs=None,
        **options)``, and Celery itself calls it so.

        Errors are raised only if a caller sees them. Messages of beat and retries have no such
        caller. Messages that Celery sends after a task has ended have none either: links, errbacks,
        the next of a chain, the body of a chord. For all of them the error is logged, and the
        message is charged to the tenant ``_invalid``.

        Raises:
            TenantInvalid: The tenant is of a wrong type or too long.
            TenantMissing: There is no tenant and ``no_tenant`` is ``"error"``.
            PolicyInvalid: A policy of the option ``limits`` is wrong. Or an option of the call is
                a misspelling of ``limits``, or a task option without effect in a call.
            KeyMissing: A limit's key has a field for which the message has no value.
            KeyInvalid: The value of such a field is not allowed in a key.
            HeaderInvalid: The ``fairness`` header of the call cannot carry the limits.
            TaskDeclarationError: The task is unique, and its broker is not at ``fairredis://``. Or
                the call has a link or is in a canvas, and ``on_duplicate`` is ``existing``.
            NotWired: The app has no ``Fairness``.
        """
        if len(given) > 2:
            # A wrong call raises here, with Celery's own error.
            _SIGNATURE.bind(self, *given, **options)
            options.update(zip(_PARAMETERS[2:], given[2:], strict=False))
            given = given[:2]
        args, kwargs = (
            given[place] if place < len(given) else options.get(name)
            for place, name in enumerate(_PARAMETERS[:2])
        )
        if self.app.conf.task_always_eager:
            self._check_eager(options, args or (), kwargs or {})
        else:
            self._stamp(options, args or (), kwargs or {})
        try:
            return super().apply_async(*given, **options)
        except TaskExists as found:
            if self.unique_source is None:
                raise
            return self.AsyncResult(found.task_id)

    def _stamp(self, options: dict[str, Any], args: Any, kwargs: Any) -> None:
        """Put the ``fairness`` header into the options of a call."""
        headers = dict(options.get("headers") or {})
        fairness = wired(self.app)
        strict = _is_called(self.app, options) and not fairness.stamp.by_beat(headers)
        if strict:
            check_call(self.name, options)
            check_partitions(self, fairness)
        # Routes that were set after the app was configured have replaced the router.
        fairness.install_router()
        parent = parent_headers(self.app)
        # Celery makes a property of each option that it does not know.
        message = Message(self.name, self, headers, args, kwargs, parent, options)
        header = fairness.stamp.header(message, strict=strict)
        if header is None:
            return
        if strict:
            # Without a caller the signal before the publish reads them, and never raises.
            called = options.pop(FIELD, None)

            def queue() -> str | None:
                return self._queue(args, kwargs, options)

            header = self.limit_source.of(called, header, args, kwargs, queue)
            if self.unique_source is not None:
                check_unique(self, fairness)
                self.unique_source.check_call(options)
                header = self.unique_source.of(header, args, kwargs, queue)
                self._debounce(options)
        options["headers"] = {**headers, HEADER: header}

    def _debounce(self, options: dict[str, Any]) -> None:
        """Delay a call that has no time of its own."""
        seconds = None if self.unique_source is None else self.unique_source.debounce_seconds
        has_time = options.get("countdown") is not None or options.get("eta") is not None
        if seconds is not None and not has_time:
            options["countdown"] = seconds

    def _check_eager(self, options: dict[str, Any], args: Any, kwargs: Any) -> None:
        """Raise the errors that sending would raise, without a publish or a call to Redis."""
        called = options.pop(FIELD, None)
        if not _is_called(self.app, options):
            return
        check_call(self.name, options)
        header = (options.get("headers") or {}).get(HEADER)
        if header is None:
            source = self.tenant_source
            tenant = None if source is None else source.read(args, kwargs)
            if tenant is None and self.app.current_worker_task is not None:
                # A publish would use the parent's tenant, which an eager parent does not have.
                tenant = _PLACEHOLDER
            header = {} if tenant is None else {"tenant": tenant}
        if isinstance(header, Mapping) and header.get("tenant"):
            header = {"tier": _PLACEHOLDER, **header}
        self.limit_source.of(called, header, args, kwargs, lambda: _PLACEHOLDER)
        if self.unique_source is not None:
            self.unique_source.check_call(options)
            self.unique_source.of(header, args, kwargs, lambda: _PLACEHOLDER)

    def _queue(self, args: Any, kwargs: Any, options: Any) -> str | None:
        """Return the name of the queue that a message will go to; None if it has no name."""
        router: Any = self.app.amqp.router
        # As Celery itself, which routes by the options that are no parameters.
        free = {name: value for name, value in options.items() if name not in _PARAMETERS}
        routed: dict[str, Any] = router.route(free, self.name, args, kwargs, self)
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
            queue = fairness.router.again(self, current, headers_of(request))
        if queue is not None:
            extra_options["queue"] = queue
        made = super().signature_from_request(request, args, kwargs, **extra_options)
        options = {**made.options, **retry_options(self.app, request, args, kwargs)}
        headers = {**(options.get("headers") or {}), **headers_of(request)}
        if given := extra_options.get("headers"):
            headers = {**headers_of(request), **given}
        return made.set(**{**options, **extra_options, "headers": headers})


def check_unique(task: FairTask, fairness: Any) -> None:
    """Check that something acts by the unique key of a task.

    Raises:
        TaskDeclarationError: Its broker is not at ``fairredis://``.
    """
    if task.unique_source is not None and not fairness.claims_fairly:
        raise TaskDeclarationError(
            task.name,
            "unique",
            "expected a broker at fairredis://, because a gate does not see what waits on another "
            "one: remove the option, or move the broker",
        )


def check_partitions(task: FairTask, fairness: Any) -> None:
    """Check that the limits and the unique key of a task hold with several partitions.

    Raises:
        TaskDeclarationError: One would hold in each partition alone.
    """
    count = fairness.settings.partitions if fairness.claims_fairly else 1
    if count == 1:
        return
    sources = (
        ("limits", task.limit_source, ", or a limit whose tasks wait"),
        ("unique", task.unique_source, ""),
    )
    for option, source, others in sources:
        alone = source.of_one_partition() if source is not None else []
        if alone:
            raise TaskDeclarationError(
                task.name,
                option,
                f"expected a key with {{tenant}}{others}, because fairness.partitions is {count} "
                f"and this key would count in each partition alone, got: {alone[0]!r}",
            )


class _Wired(bootsteps.Step):
    """Part of a worker that refuses to run the FairTasks of an app without ``Fairness``.

    :meth:`FairTask.start_strategy` comes too late for a worker in a thread, such as the fixture
    ``celery_worker`` of Celery: the fixture would wait for its start without an end.
    """

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        if any(isinstance(task, FairTask) for task in worker.app.tasks.values()):
            wired(worker.app)


def parent_headers(app: Any) -> Any:
    """Return our headers of the task that is running here, None outside a task."""
    parent = app.current_worker_task
    return None if parent is None else headers_of(parent.request)


def retried_headers(app: Any, name: str, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return our headers of the task that is running here, if a message is its retry.

    Celery's own tasks make the message of a retry from ``request.headers``, which may lack them or
    have old ones. Headers that the caller of ``retry`` gives stay. The replacement of a task has
    its id, too, but no retries.
    """
    parent = app.current_worker_task
    if parent is None or not headers.get("retries"):
        return {}
    if (headers.get("id"), name) != (parent.request.id, parent.name):
        return {}
    within = parent.request.headers
    within = within if isinstance(within, Mapping) else {}
    own = headers_of(parent.request).items()
    return {n: value for n, value in own if n not in headers or headers[n] == within.get(n)}


def _is_called(app: Any, options: Mapping[str, Any]) -> bool:
    """Return whether user code called ``apply_async`` and sees its errors, and not Celery.

    An error that was there from the start must not lose a retry. A wrong successor must not make
    a failure of the task that ended before it. A task that is sent again has ``retries``, 0 after
    a ``RateLimitExceeded``. Links, errbacks and the next of a chain have ``parent_id``, which only
    Celery sets. The body of a chord has Celery's own mark.
    """
    again = options.get("retries") is not None
    return not (again or options.get("parent_id") or is_following(app))


def follows(app: Any, name: str, headers: Mapping[str, Any], body: Any) -> bool:
    """Return whether a message belongs to a task that was accepted before, or follows one.

    A running task sends itself again under its own id. Celery marks links, the next of a chain
    and bodies of chords. It does not mark errbacks. Outside a task an errback has ``parent_id``.
    Inside a task it has the name of one of the task's errbacks.
    """
    if is_following(app) or (isinstance(body, Mapping) and body.get("retries")):
        return True
    parent = app.current_worker_task
    if parent is None:
        return bool(headers.get("parent_id"))
    if headers.get("id") == parent.request.id:
        return True
    errbacks = parent.request.errbacks or ()
    return any(isinstance(each, Mapping) and each.get("task") == name for each in errbacks)


def not_kept(task: Any) -> PolicyInvalid | None:
    """Return the error if a message of ``task`` on another broker has limits that nothing enforces.

    Workers enforce them at the gate, so for FairTasks only. A name that is not registered here
    (None) may be a FairTask in the workers, so it is no error.
    """
    if task is None or isinstance(task, FairTask):
        return None
    return PolicyInvalid(
        "limits: expected base=FairTask, or a broker at fairredis://, to enforce them, "
        f"got: a task of {type(task).__mro__[1].__name__}"
    )


def _own_attributes(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that decorators and users' classes add to FairTask, without methods."""
    # Not getattr: reading 'app' binds a class, and Celery reads no annotations below a bound base.
    known = set(dir(FairTask))
    for each in cls.__mro__[: cls.__mro__.index(FairTask)]:
        # Celery makes a class from the decorator's options.
        decorated = "_decorated" in vars(each)
        for name, value in vars(each).items():
            if name not in known and (decorated or not hasattr(value, "__get__")):
                yield name, value


def _has_other_call(cls: type) -> bool:
    """Return whether a class after FairTask, such as the app's ``task_cls``, has ``__call__``."""
    behind = cls.__mro__[cls.__mro__.index(FairTask) + 1 :]
    return any("__call__" in vars(c) for c in behind if c not in (Task, object))


def _in_slot(task: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``body``: the attempt's slot ends with the body, and ``RateLimitExceeded`` is handled.

    The wrapper replaces ``run``, inside Celery's wrapper for ``autoretry_for``. So Celery retries
    the error of a limiter that is away like an error of the body. It never retries a
    ``RateLimitExceeded``, with any options and any ``__call__`` of the user.
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
                result = body(*args, **kwargs)
            except BaseException as error:
                if attempt is not None:
                    attempt.end(outcome_of(error, task))
                raise
            if attempt is not None:
                attempt.end()
            return result
        except RateLimitExceeded as error:
            raised = after_rate_limit(task, error)
            if raised is error:
                raise
            raise raised from error

    return run
