"""The Celery app of a run: tasks that take their time and write it into the ledger.

CHAOS_ON is the broker and the path (``plan.On``). On stock it is plain Celery, without tenants.
With CHAOS_PARTITIONS, rates of the queue and bursts are left out, because they are errors.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from typing import Any, cast

from celery import Celery, Task
from celery.backends.base import DisabledBackend
from celery.exceptions import Retry
from celery.signals import worker_ready
from celery.worker.request import Request

from celery_fairness import DuplicateTask, Fairness, FairTask
from celery_fairness.message.headers import COPY_HEADER
from celery_fairness.worker.gate.gate import NOT_BEGUN
from celery_fairness.worker.request_mixin import failure_of
from tests.chaos import ledger
from tests.chaos.plan import (
    DEBOUNCE_AT_MOST_SECONDS,
    DEBOUNCE_SECONDS,
    LIMITS,
    MAX_DELIVERIES,
    ON_DUPLICATE,
    OUR_BROKERS,
    QUEUE,
    QUEUE_SETTINGS,
    TIER_BURSTS,
    TIER_OF,
    TIER_PACES,
    TIERS,
    TOKENS,
    On,
    OnDuplicate,
)

ON = cast("On", os.environ.get("CHAOS_ON", "fairredis"))
STOCK = ON == "stock"
PARTITIONS = int(os.environ.get("CHAOS_PARTITIONS", "1"))
LEASE_SECONDS = float(os.environ.get("CHAOS_LEASE_SECONDS", "3"))
#: Which incarnation of which worker this is.
WORKER = os.environ.get("CHAOS_WORKER", "")
RETRY_COUNTDOWN_SECONDS = 0.3

app = Celery("chaos", broker=os.environ.get("CHAOS_BROKER_URL", "memory://"))
app.conf.update(
    task_ignore_result=True,
    result_backend="tests.chaos.app:LedgerBackend",
    # Else a late task whose process is killed would fail, and be done.
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # A retry that cannot be sent is dropped by Celery: it is sent until it is.
    task_publish_retry_policy={"max_retries": None, "interval_start": 0.1, "interval_max": 0.5},
)


def lending(low: int, most: int) -> dict[str, int]:
    """Return the numbers of a tier with a burst."""
    return {"concurrency": low, "burst": most} if PARTITIONS == 1 else {"concurrency": most}


if STOCK:
    app.conf.broker_transport_options = {
        "visibility_timeout": float(os.environ["CHAOS_VISIBILITY_SECONDS"])
    }
else:
    if WORKER and ON in OUR_BROKERS:
        # The first connection of a process has four seconds, whatever the policy of a publish is.
        app.conf.broker_transport_options = {"connect_retries_timeout": 60.0}
    app.conf.fairness = {
        "lease_seconds": LEASE_SECONDS,
        "tiers": {name: {"concurrency": limit} for limit, name in TIERS.items()}
        | {name: {"concurrency": most, "rate": rate} for name, (most, rate) in TIER_PACES.items()}
        | {name: lending(low, most) for name, (low, most) in TIER_BURSTS.items()},
        "queues": {QUEUE: QUEUE_SETTINGS},
        "partitions": PARTITIONS,
        "tier_resolver": "tests.chaos.app:tier_of",
    }
    if ON == "gate":
        app.conf.fairness |= {
            "redis_url": os.environ.get("CHAOS_REDIS_URL", "redis://"),
            "tier_on_limit": "wait",
            "redis_lost": "defer",
            "snooze_seconds": 1.0,
            "snooze_jitter_seconds": 0.5,
        }
    else:
        app.conf.fairness |= {"max_deliveries": MAX_DELIVERIES}
    fairness = Fairness(app)


def tier_of(tenant: str) -> str | None:
    """Return a tenant's tier."""
    limit = LIMITS.get(tenant)
    return None if limit is None else TIER_OF.get(tenant, TIERS[limit])


class LedgerBackend(DisabledBackend):  # type: ignore[misc]
    """Writes into the ledger that a unique task ended because another one has its key."""

    def store_result(self, task_id: str, result: Any, *_: Any, **__: Any) -> None:
        """Write it down; other results are those of bodies, which write them."""
        if isinstance(result, DuplicateTask):
            ledger.write("duplicate", id=task_id, how=result.how, of=result.of)


_Request: Any = Request


class SeenRequest(_Request):
    """Says that a worker has a task, that its pool has it, and that a gate sent it back."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        ledger.write("received", id=self.id, retries=self._request_dict["retries"], worker=WORKER)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Write it down."""
        retries = self._request_dict["retries"]
        again = bool(self.delivery_info.get("redelivered"))
        facts = {"id": self.id, "retries": retries, "pid": pid, "worker": WORKER}
        ledger.write("accepted", redelivered=again, **facts)
        super().on_accepted(pid, time_accepted)

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> Any:
        """Write down that the body has not begun."""
        if isinstance(failure_of(exc_info), NOT_BEGUN):
            ledger.write("sent back", id=self.id, worker=WORKER)
        return super().on_failure(exc_info, *args, **options)


base: Any = Task if STOCK else FairTask


class ChaosTask(base):
    """A task of a run."""

    abstract = True
    Request = "tests.chaos.app:SeenRequest"


options: dict[str, Any] = {"bind": True, "base": ChaosTask, "max_retries": None}
if not STOCK:
    options["tenant"] = "tenant"


def _begin(task: Any, tenant: str | None, **takes: Any) -> dict[str, Any]:
    """Write that a body begins and what it takes, and return what names it."""
    request = task.request
    # A gate publishes copies of one message, and a promoter those of parked tasks.
    copy = getattr(request, COPY_HEADER, None) or {}
    facts = {
        "id": request.id,
        "retries": request.retries,
        "run": uuid.uuid4().hex[:12],
        "pid": os.getpid(),
        "worker": WORKER,
    }
    ledger.write(
        "start",
        tenant=tenant or "system",
        late=task.acks_late,
        redelivered=bool((request.delivery_info or {}).get("redelivered")),
        message=copy.get("message"),
        promoted="waited_ms" in copy,
        **takes,
        **facts,
    )
    return facts


def _body(
    task: Any,
    tenant: str | None,
    seconds: float,
    retries: int,
    units: int = 1,
    slots: int = 1,
    used: int | None = None,
    part: str = "",
) -> None:
    """Run for a while."""
    facts = _begin(task, tenant, units=units, slots=slots, part=part)
    outcome = "error"
    try:
        time.sleep(seconds / 2)
        if used is not None and not STOCK:
            _report(facts, used)
        time.sleep(seconds / 2)
        if task.request.retries < retries:
            task.retry(countdown=RETRY_COUNTDOWN_SECONDS)
        outcome = "ok"
    except Retry:
        outcome = "retry"
        raise
    except Exception as error:
        outcome = f"error {error!r}"
        raise
    finally:
        ledger.write("end", outcome=outcome, **facts)


def _report(facts: dict[str, Any], used: int) -> None:
    """Correct what the start has counted, and write what may count from now on before that."""
    ledger.write("using", run=facts["run"], units=used)
    counted = fairness.limits.used(TOKENS, used)
    ledger.write("used", run=facts["run"], units=used, counted=counted)


app.task(name="chaos.early", acks_late=False, **options)(_body)
app.task(name="chaos.late", acks_late=True, **options)(_body)


def _unique(on_duplicate: OnDuplicate) -> None:
    """Declare the unique task with what its duplicates do."""
    more: dict[str, Any] = {"on_duplicate": on_duplicate}
    if on_duplicate == "debounce":
        more = {"on_duplicate": "replace", "debounce": DEBOUNCE_SECONDS}
        more["debounce_at_most"] = DEBOUNCE_AT_MOST_SECONDS

    @app.task(
        name=f"chaos.{on_duplicate}",
        # Both kinds of acknowledgement have a task that keeps its key, and one that gives it away.
        acks_late=on_duplicate in ("drop", "replace"),
        ignore_result=False,
        unique=on_duplicate + ":{tenant}:{args.account}",
        **more,
        **options,
    )
    def unique(self: Any, tenant: str, account: str, seconds: float, retries: int) -> None:
        _body(self, tenant, seconds, retries)


if ON in OUR_BROKERS:
    for each in ON_DUPLICATE:
        _unique(each)


def _kill(task: Any, tenant: str, whole: bool) -> None:
    """Kill the process that runs this body, or its whole worker."""
    facts = _begin(task, tenant)
    # Each worker leads a group, and only a prefork worker runs bodies in other processes of it.
    main = os.getpgrp()
    whole = whole or main == os.getpid()
    what, pid = ("worker", main) if whole else ("child", os.getpid())
    ledger.write("kill", what=what, worker=WORKER, pid=pid, by=facts["id"])
    if whole:
        os.killpg(main, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="chaos.early_poison", acks_late=False, **options)
def early_poison(self: Any, tenant: str, whole: bool) -> None:
    """End its process at the first line; acknowledged before."""
    _kill(self, tenant, whole)


@app.task(name="chaos.late_poison", acks_late=True, **options)
def late_poison(self: Any, tenant: str, whole: bool) -> None:
    """End its process at the first line; acknowledged after."""
    _kill(self, tenant, whole)


@worker_ready.connect
def _ready(**_: Any) -> None:
    places = int(os.environ["CHAOS_PLACES"])
    ledger.write("ready", worker=WORKER, pid=os.getpid(), places=places)
