"""The sender of a run: keeps some tasks waiting for every tenant until it is told to stop.

It learns from the ledger what has started, so that whatever is slow or down, tenants have work
that waits and the backlog stays small.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import MovedError, RedisError

from celery_fairness.store.partitions import Partitions
from tests.chaos import audit, ledger, troubles
from tests.chaos.app import ON, PARTITIONS, STOCK, app
from tests.chaos.plan import (
    CAPS,
    DEBOUNCE_SECONDS,
    LIMITS,
    OUR_BROKERS,
    PACES,
    PLANS,
    QUEUE_OF,
    STARVABLE,
    UNIQUE,
    Call,
    next_call,
    next_job,
)

TURN_SECONDS = 0.02
#: On a cluster a call of `delay()` ends as Celery's own settings say, so that it can fail.
POLICY = {"max_retries": 3, "interval_start": 0, "interval_max": 1, "interval_step": 0.2}
#: A key of each partition that nothing reads.
MARK = "chaos"
#: How long a replica may take until it is asked again, in ms.
WAIT_MS = 100


#: Tenants whose tasks wait for something slow.
SHORT = frozenset(tenant for tenants, _ in STARVABLE.values() for tenant in tenants)
#: Chance of calls of a unique task in a turn.
CALL_SHARE = 0.3


def backlog(tenant: str) -> int:
    """Return how many tasks of a tenant shall wait."""
    limit = LIMITS[tenant]
    if tenant == UNIQUE:
        return 6
    if tenant in SHORT:
        # The tasks of a slow rate must all start soon after the end of the load.
        return 2
    return 2 if limit is None else 3 + 3 * limit


class Replica:
    """Learns which tasks the replica of one slot's primary has.

    A replica has all that its primary wrote before a mark that the replica has. A task may have
    gone to another server than the mark, so the same one must have answered before and after.

    Args:
        cluster: A client. Each node's client has one connection, because one thread uses it.
        prefix: How the keys in the slot begin.
    """

    def __init__(self, cluster: RedisCluster, prefix: str) -> None:
        self._cluster, self._prefix = cluster, prefix
        self._server = ""
        self._tasks: list[str] = []

    def expect(self, task_id: str) -> None:
        """Note that the primary has taken a task."""
        self._tasks.append(task_id)

    def look(self) -> None:
        """Write the tasks that it has since the last call."""
        server, copies = "", 0
        try:
            node = self._cluster.get_node_from_key(self._prefix)
            client = self._cluster.get_redis_connection(node)
            client.set(self._prefix + MARK, 1)
            copies = client.wait(1, WAIT_MS)
            server = client.info("replication")["master_replid"]
        except MovedError:
            self._cluster.nodes_manager.initialize()
        except (RedisError, OSError):
            with suppress(RedisError, OSError):
                self._cluster.nodes_manager.initialize()
        if server == self._server and copies and self._tasks:
            ledger.write("held", ids=self._tasks)
        if server != self._server or copies:
            self._tasks = []
        self._server = server


class Replicas:
    """Those of all partitions.

    Args:
        url: The address of the broker.
    """

    def __init__(self, url: str) -> None:
        hosts = [urlsplit(each) for each in url.split(";")]
        nodes = [ClusterNode(str(each.hostname), int(each.port or 0)) for each in hosts]
        cluster = RedisCluster(startup_nodes=nodes, socket_timeout=1.0, socket_connect_timeout=1.0)
        self._partitions = Partitions(audit.NAMESPACE, count=PARTITIONS)
        self._of = [Replica(cluster, names.prefix) for names in self._partitions.names]

    def expect(self, task_id: str, tenant: str) -> None:
        """Note that the primary of a tenant has taken a task."""
        self._of[self._partitions.of_tenant(tenant, task_id)].expect(task_id)

    def look(self) -> None:
        """Write the tasks that the replicas have since the last call."""
        for each in self._of:
            each.look()


class Sender:
    """Sends the tasks of each tenant, and writes what the broker took.

    Args:
        seed: Decides what the tasks are.
        form: Name of the plan.
    """

    def __init__(self, seed: int, form: str) -> None:
        self._plan = PLANS[form]
        self._random = Random(f"load {seed}")
        self._calls = Random(f"calls {seed}")
        self._replicas = Replicas(os.environ["CHAOS_BROKER_URL"]) if ON == "faircluster" else None
        self._number: Counter[str] = Counter()
        self._waiting: dict[str, set[str]] = {tenant: set() for tenant in LIMITS}
        #: Tasks that began or ended, perhaps before their sender has noted them.
        self._known: set[str] = set()

    def note(self, event: ledger.Event) -> None:
        """Note that a task waits no more."""
        self._known.add(event["id"])
        for waiting in self._waiting.values():
            waiting.discard(event["id"])

    def note_poison(self, task_id: str, tenant: str) -> None:
        """Note that another task was sent."""
        if self._replicas:
            self._replicas.expect(task_id, tenant)

    def turn(self) -> None:
        """Send what shall wait, at most one task of each tenant."""
        for tenant, waiting in self._waiting.items():
            if len(waiting) >= backlog(tenant):
                continue
            if tenant != UNIQUE:
                self._send(tenant)
            elif ON in OUR_BROKERS and self._calls.random() < CALL_SHARE:
                call = next_call(self._calls)
                for _ in range(call.times):
                    self._call(call)

    def look(self) -> None:
        """Learn what the replicas have."""
        if self._replicas:
            self._replicas.look()

    def _send(self, tenant: str) -> None:
        job = next_job(self._plan, self._random, tenant)
        kwargs = {"seconds": job.seconds, "retries": job.retries}
        kwargs |= {"tenant": None if LIMITS[tenant] is None else tenant}
        kwargs |= {"units": job.units, "used": job.used}
        kwargs |= {"slots": job.slots, "part": job.part}
        options: dict[str, Any] = {"countdown": job.countdown or None}
        if not STOCK:
            keys = [*PACES.values(), *CAPS.values()]
            policies = [each.policy for each in keys if tenant in each.tenants]
            options["limits"] = [policy for policy in policies if policy]
        if tenant in QUEUE_OF:
            options["queue"] = QUEUE_OF[tenant]
        name = "chaos.late" if job.late else "chaos.early"
        self._submit(name, tenant, kwargs, options, late=job.late, after=job.countdown)

    def _call(self, call: Call) -> None:
        kwargs = {"tenant": UNIQUE, "account": call.account}
        kwargs |= {"seconds": call.seconds, "retries": call.retries}
        self._submit(
            f"chaos.{call.on_duplicate}",
            UNIQUE,
            kwargs,
            {},
            late=app.tasks[f"chaos.{call.on_duplicate}"].acks_late,
            after=DEBOUNCE_SECONDS if call.on_duplicate == "debounce" else 0.0,
            unique=f"{call.on_duplicate}:{call.account}",
        )

    def _submit(
        self,
        name: str,
        tenant: str,
        kwargs: dict[str, Any],
        options: dict[str, Any],
        *,
        after: float,
        **about: Any,
    ) -> None:
        self._number[tenant] += 1
        task_id = f"{tenant}-{self._number[tenant]}"
        facts: dict[str, Any] = {"id": task_id, "tenant": tenant, **about}
        begins = ledger.now()
        try:
            result = app.tasks[name].apply_async(
                kwargs=kwargs,
                task_id=task_id,
                retry=True,
                retry_policy=POLICY if self._replicas else None,
                **options,
            )
        except Exception as error:  # noqa: BLE001 - whatever the transport raises
            failed = {"failed": ledger.now(), "error": repr(error)}
            ledger.write("submit_failed", begins, **failed, **facts)
            return
        taken = ledger.now()
        if result.id != task_id:
            # Nothing was sent, because another task has the key.
            ledger.write("existing", begins, taken=taken, of=result.id, **facts)
            return
        ledger.write("submit", begins, taken=taken, due=begins + after, **facts)
        if task_id not in self._known:
            self._waiting[tenant].add(task_id)
        if self._replicas:
            self._replicas.expect(task_id, "" if LIMITS[tenant] is None else tenant)


def main(seed: int, form: str) -> None:
    """Send until SIGTERM."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    tail = ledger.Tail(Path(os.environ[ledger.VARIABLE]))
    sender = Sender(seed, form)
    wanted: deque[ledger.Event] = deque()
    # A poison that is wanted at the end is sent too.
    while not stop or wanted:
        for event in tail.read():
            if event["event"] == "wanted":
                wanted.append(event)
            if event["event"] in ("start", "duplicate"):
                sender.note(event)
        if wanted and troubles.cause(app, wanted[0]):
            done = wanted.popleft()
            if done["what"] == "poison":
                sender.note_poison(done["id"], done["tenant"])
        if not stop:
            sender.turn()
        sender.look()
        time.sleep(TURN_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
