"""One run: servers, workers, load and faults in one loop; it returns what the ledger tells.

The loop is one thread that lives as long as the run, because the kernel ends what a thread started
when that thread ends.
"""

from __future__ import annotations

import heapq
import itertools
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from tests.chaos import audit, ledger
from tests.chaos.fleet import Fleet, Worker
from tests.chaos.plan import (
    CAPS,
    LIMITS,
    MAX_DELIVERIES,
    OF_CLUSTER,
    OF_REDIS,
    OUR_BROKERS,
    PACES,
    POISONED,
    SHRUNK_SECONDS,
    STARVABLE,
    TIER_BURSTS,
    Fault,
    On,
    Plan,
    faults,
)
from tests.chaos.servers import Cluster, OneRedis, Servers
from tests.chaos.story import Story
from tests.chaos.verdict import Verdict, judge
from tests.support.rabbit import RabbitServer

TURN_SECONDS = 0.05
AGAIN_SECONDS = 0.3
PROGRESS_SECONDS = 10.0
READY_SECONDS = 60.0

Item = TypeVar("Item")


class NeverReady(RuntimeError):
    """The workers did not come up."""


class Run:
    """One run against one broker.

    Args:
        plan: Amounts.
        seed: Decides faults and load.
        name: What it is on.
        form: Name of the plan that the load is of.
        partitions: The setting of that name.
    """

    def __init__(self, plan: Plan, seed: int, name: On, form: str, partitions: int = 1) -> None:
        self.plan = plan
        self.seed = seed
        self.name = name
        self.stock = name == "stock"
        self._ours = name in OUR_BROKERS
        self.form = form
        self._partitions = partitions
        self.directory = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
        self.path = self.directory / "ledger.jsonl"
        self.events: list[ledger.Event] = []
        #: How many faults of each kind happened.
        self.happened: Counter[str] = Counter()
        self._tail = ledger.Tail(self.path)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._open: dict[str, ledger.Event] = {}
        self._letters: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._next_progress = 0.0
        #: How long stock Redis keeps a message from others.
        self.visibility_seconds = max(4.0 * plan.lease_seconds, 10.0)

    # -- the whole --------------------------------------------------------------------------------

    def run(self) -> Verdict:
        """Do it all and judge."""
        on_cluster = self.name == "faircluster"
        servers: Servers = (
            Cluster(self._partitions) if on_cluster else OneRedis(has_clock=not self.stock)
        )
        with ExitStack() as stack:
            self._servers = stack.enter_context(servers)
            self._rabbit = RabbitServer()
            if self.name == "gate":
                stack.enter_context(self._rabbit)
            self._fleet = Fleet(self.directory, (self._environ(False), self._environ(True)))
            stack.callback(self._fleet.close)
            self._fleet.open()
            self._begun = ledger.now()
            self._await_ready()
            sender = self._start_sender()
            self._cause_faults()
            self._stop_sender(sender)
            self._drain()
            left = self._await_nothing_left()
        longest = self.plan.longest_seconds
        bounds = {what: (names, bound + longest) for what, (names, bound) in STARVABLE.items()}
        lenders = {
            what: audit.lenders_of(self._partitions, key, cap.tenants)
            for what, (names, _) in STARVABLE.items()
            for key, cap in CAPS.items()
            if cap.policy and set(names) <= set(cap.tenants)
        }
        limits = LIMITS if self._ours else LIMITS | {"lent0": TIER_BURSTS["lent"][0]}
        return judge(
            self._story(),
            limits,
            left,
            {} if self.stock else PACES,
            caps={} if self.stock else CAPS,
            starvable={} if self.stock else bounds,
            lenders=lenders,
            max_deliveries=MAX_DELIVERIES if self._ours else None,
            parks=self.name == "gate",
            has_uniques=self._ours,
        )

    def _environ(self, by_proxy: bool) -> dict[str, str]:
        url = self._servers.url(by_proxy=by_proxy)
        broker = self._servers.broker(by_proxy=by_proxy) if self._ours else url
        return {
            "CHAOS_ON": self.name,
            "CHAOS_BROKER_URL": self._rabbit.url if self.name == "gate" else broker,
            "CHAOS_REDIS_URL": url,
            "CHAOS_PARTITIONS": str(self._partitions),
            "CHAOS_LEASE_SECONDS": str(self.plan.lease_seconds),
            "CHAOS_VISIBILITY_SECONDS": str(self.visibility_seconds),
            ledger.VARIABLE: str(self.path),
        }

    def _story(self) -> Story:
        return Story(self.events, self.plan.lease_seconds)

    def _await_ready(self) -> None:
        ends_at = ledger.now() + READY_SECONDS
        while not all(worker.ready for worker in self._fleet.workers):
            if ledger.now() > ends_at:
                missing = [worker.name for worker in self._fleet.workers if not worker.ready]
                raise NeverReady(
                    f"workers expected to be ready within {READY_SECONDS:.0f} s, got none of "
                    f"{', '.join(missing)}; logs are in {self.directory}"
                )
            self._turn()

    def _start_sender(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "tests.chaos.load", str(self.seed), self.form]
        with (self.directory / "load.log").open("wb") as log:
            return self._fleet.run(argv, self._environ(False), log)

    def _stop_sender(self, sender: subprocess.Popen[bytes]) -> None:
        sender.send_signal(signal.SIGTERM)
        while sender.poll() is None:
            self._turn()

    # -- the loop ---------------------------------------------------------------------------------

    def _at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at, next(self._numbers), action))

    def _turn(self) -> None:
        """Do what is due, start workers again, and read on."""
        while self._agenda and self._agenda[0][0] <= ledger.now():
            heapq.heappop(self._agenda)[2]()
        # A task that kills its worker writes so before.
        dead = self._fleet.dead()
        for event in self._tail.read():
            self._see(event)
        self._fleet.restart(dead)
        self._fleet.guard(self._servers.groups)
        if ledger.now() >= self._next_progress:
            self._next_progress = ledger.now() + PROGRESS_SECONDS
            self._print_progress()
        time.sleep(TURN_SECONDS)

    def _see(self, event: ledger.Event) -> None:
        self.events.append(event)
        name = event["event"]
        self._counts[name] += 1
        if name == "ready":
            self._fleet.note_ready(event["worker"])
        elif name == "start":
            self._open[event["run"]] = event
        elif name == "end":
            self._open.pop(event["run"], None)
        elif name == "kill" and event["what"] == "worker":
            self._fleet.note_killed(event["worker"])

    def _print_progress(self) -> None:
        done = ", ".join(
            f"{self.happened[kind]}/{amount} {kind}" for kind, amount in self.plan.amounts.items()
        )
        counts = self._counts
        print(
            f"{self.name} {ledger.now() - self._begun:5.0f} s: {counts['submit']} sent, "
            f"{counts['start']} began, {counts['end']} ended; {done}",
            flush=True,
        )

    # -- faults -----------------------------------------------------------------------------------

    def _cause_faults(self) -> None:
        begun = ledger.now()
        for fault in faults(self.plan, self.seed):
            self._at(begun + fault.at, lambda fault=fault: self._try(fault))
        while self._agenda or self._servers.busy or ledger.now() < begun + self.plan.seconds:
            self._turn()

    def _try(self, fault: Fault) -> None:
        """Cause a fault, or try again soon where it cannot be now."""
        of_redis = fault.kind in (*OF_REDIS, *OF_CLUSTER)
        caused = self._servers.cause(fault) if of_redis else self._cause_in_worker(fault)
        if caused:
            self.happened[fault.kind] += 1
        else:
            self._at(ledger.now() + AGAIN_SECONDS, lambda: self._try(fault))

    def _cause_in_worker(self, fault: Fault) -> bool:
        fleet = self._fleet
        if fault.kind == "poison":
            self._want_poison(fault)
            return True
        if fault.kind == "unreadable":
            ledger.write("wanted", what="unreadable", number=self.happened["unreadable"])
            return True
        ready = [each for each in fleet.workers if each.alive and each.ready]
        if fault.kind == "kill worker":
            # Some are killed while they start.
            among = [each for each in fleet.workers if each.alive] if fault.variant < 0.1 else ready
            if not among:
                return False
            fleet.kill(_choose(among, fault.target))
            return True
        ready = [each for each in ready if each.frozen is None and not each.stopping]
        if fault.kind == "shrink":
            return self._shrink(ready, fault)
        if fault.kind in ("freeze", "stop"):
            if not ready:
                return False
            worker = _choose(ready, fault.target)
            if fault.kind == "stop":
                fleet.stop(worker)
                return True
            fleet.freeze(worker, with_children=fault.variant < 0.6)
            self._at(ledger.now() + fault.seconds, lambda: fleet.thaw(worker))
            return True
        return self._kill_child(ready, fault)

    def _want_poison(self, fault: Fault) -> None:
        # Neither another broker nor stock Celery bounds how often a late-acked poison is delivered.
        late = fault.variant >= 0.5 and self._ours
        ledger.write(
            "wanted",
            what="poison",
            id=f"poison-{self.happened['poison']}",
            tenant=_choose(list(POISONED), fault.target),
            late=late,
            whole=fault.variant % 0.5 >= 0.25,
        )

    def _shrink(self, ready: list[Worker], fault: Fault) -> bool:
        """Take all processes from a pool for a while."""
        among = [each for each in ready if each.pool == "prefork"]
        if not among:
            return False
        worker = _choose(among, fault.target)
        places = len(worker.children())

        def resize(*, grow: bool) -> None:
            ledger.write("wanted", what="resize", worker=worker.name, places=places, grow=grow)

        resize(grow=False)
        self._at(ledger.now() + SHRUNK_SECONDS, lambda: resize(grow=True))
        return True

    def _kill_child(self, ready: list[Worker], fault: Fault) -> bool:
        children = [
            (worker, pid)
            for worker in ready
            if worker.pool == "prefork"
            for pid in worker.children()
        ]
        # The slots of tenants that may run one task are what is measured.
        busy = {
            (event["worker"], event["pid"])
            for event in self._open.values()
            if LIMITS[event["tenant"]] == 1
        }
        with_body = [each for each in children if (each[0].name, each[1]) in busy]
        among = with_body if fault.variant < 0.7 else children
        if not among:
            return False
        worker, pid = _choose(among, fault.target)
        return self._fleet.kill_child(worker, pid)

    # -- the end ----------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Wait until every task that can still end has."""
        begun = ledger.now()
        keeps = self.visibility_seconds if self.stock else self.plan.lease_seconds
        # Those of killed workers come back one after another, the long ones too. A poison that
        # began last has all of its deaths before it, and may wait for another one of its tenant.
        ends_at = begun + 10 * keeps + 30.0
        settled_at = begun + keeps + 1.0
        while ledger.now() < ends_at:
            for _ in range(10):
                self._turn()
            self._note_letters()
            if not self._story().unfinished()[0] and ledger.now() > settled_at:
                break

    def _await_nothing_left(self) -> dict[str, str]:
        ends_at = ledger.now() + 2 * self.plan.lease_seconds + 2.0
        while True:
            for _ in range(10):
                self._turn()
            self._note_letters()
            left: dict[str, str] = {}
            for prefix in audit.prefixes_of(self._partitions):
                with self._servers.client(prefix) as client:
                    there = audit.leftovers(client, prefix, stock=self.stock)
                if prefix == audit.PREFIX:
                    left |= there
                    continue
                # A queue keeps its virtual time in a partition (ADR 27).
                there.pop("virtual_times", None)
                left |= {f"{prefix}{name}": what for name, what in there.items()}
            if self.name == "gate":
                left |= audit.leftover_messages(self._rabbit)
            if not left or ledger.now() > ends_at:
                return left

    def _note_letters(self) -> None:
        if not self._ours:
            return
        for name, deaths in audit.dead_letters(self._servers.broker(), self._partitions).items():
            if name not in self._letters:
                self._letters.add(name)
                ledger.write("dead letter", id=name, deaths=deaths)
        taken = 0
        for prefix in audit.prefixes_of(self._partitions):
            with self._servers.client(prefix) as client:
                taken += audit.take_quarantined(client, prefix)
        if taken:
            ledger.write("quarantined", amount=taken)


def _choose(among: list[Item], share: float) -> Item:
    return among[min(len(among) - 1, int(share * len(among)))]
