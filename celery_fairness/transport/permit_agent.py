"""The agent of a worker that carries permits and lots between partitions (ADR 30, ADR 32).

The numbers of a key that tenants of several partitions have hold for all partitions together. Its
home grants permits for its concurrency, and lends lots of starts for its rates. A partition starts
tasks only with what it has. Servers do not call each other, so a worker carries the three messages:

    request (partition) --> grant (home of the key) --> accept (partition)

Claims name the keys of these requests. An agent may die or be slow at any point. Then permits
idle until the next request, and no limit is exceeded. An agent has a thread and a connection of its
own, so no loop waits for it. It comes back when the next turn of a partition comes.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from celery_fairness.config.limit_spec import keys_of_lease
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Rules
from celery_fairness.store.partitions import Partitions
from celery_fairness.util.threads import Bell, native_lock, start_thread
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: Requests that an agent makes for one key before it looks at the next key.
VISITS_AT_MOST = 64

#: Calls a function of the library in a partition and returns its answer.
Call = Callable[[str, list[str], int], Any]


class PermitAgent:
    """The agent of one session.

    Args:
        call: Calls a function, on a connection that no other thread uses.
        ring: Rings the bells of queues of a partition, first those for new tasks.
        lease_table: The leases of this process. Their permits are renewed.
    """

    def __init__(
        self,
        call: Call,
        ring: Callable[[int, Sequence[str], Sequence[str]], None],
        partitions: Partitions,
        rules: Rules,
        lease_table: LeaseTable,
    ) -> None:
        self._call, self._ring = call, ring
        self._partitions, self._rules = partitions, rules
        self._lease_table = lease_table
        #: The keys whose requests wait, each once: claims name a key again and again until then.
        #: The value of a turn is the number of the request whose answer had its time.
        self._named: dict[tuple[int, str], int | None] = {}
        #: When a partition has its next turn at a key, the earliest first (monotonic seconds), and
        #: the number of the request.
        self._turns: list[tuple[float, int, str, int]] = []
        self._notices = Notices(logger)
        self._bell, self._lock = Bell(), native_lock()
        self._runs = self._closed = False

    # -- from anywhere ----------------------------------------------------------------------------

    def request(self, partition: int, keys: Iterable[str]) -> None:
        """Request permits of ``keys`` in a partition. This does not wait."""
        if self._name(partition, keys):
            self.begin()
            self._bell.ring()

    def begin(self) -> None:
        """Start to renew permits: the process has a lease."""
        with self._lock:
            starts, self._runs = not self._runs, True
        if starts:
            start_thread(self._run)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._bell.ring()

    # -- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        every = self._rules.lease_ms / 3000
        look_at = monotonic() + every
        while not self._closed:
            wakes_at = min([look_at, *(turn[0] for turn in self._turns[:1])])
            self._bell.wait(max(0.0, wakes_at - monotonic()))
            if monotonic() >= look_at:
                look_at = monotonic() + every
                self._try(self._look)
            while not self._closed and (named := self._next()):
                self._try(self._borrow, *named)

    def _name(self, partition: int, keys: Iterable[str]) -> bool:
        """Let the thread request keys in a partition; return whether there is one."""
        named = dict[tuple[int, str], int | None].fromkeys((partition, key) for key in keys)
        with self._lock:
            self._named |= named
        return bool(named)

    def _next(self) -> tuple[int, str, int | None] | None:
        """Take the key that waits longest; return None without one."""
        with self._lock:
            while self._turns and self._turns[0][0] <= monotonic():
                _, partition, key, number = heapq.heappop(self._turns)
                self._named.setdefault((partition, key), number)
            for partition, key in self._named:
                return partition, key, self._named.pop((partition, key))
        return None

    def _try(self, act: Callable[..., None], *args: Any) -> None:
        try:
            act(*args)
        except (RedisError, OSError, LimiterUnavailable) as error:
            # Claims name the key again.
            text = str(error) or type(error).__name__
            self._notices.error("permits", "permits could not be carried: %s", text)
        except Exception:
            logger.exception("permits could not be carried")

    def _look(self) -> None:
        """Look at the partitions of running tasks, which no claim may do for a long time."""
        held = self._lease_table.held()
        # The first key of a lease is that of its tenant.
        keys = defaultdict[int, dict[str, None]](dict)
        for each in held:
            keys[each.partition] |= dict.fromkeys(keys_of_lease(each.key)[1:])
        for partition, its in sorted(keys.items()):
            if not its:
                continue
            args = calls.due_permits_args(self._rules, its)
            due = json.loads(self._call(calls.DUE_PERMITS, args, partition))
            self._name(partition, due.get("requests", ()))
            self._ring_bells(partition, due)

    def _borrow(self, partition: int, key: str, after: int | None) -> None:
        """Request for one partition, and then for those to which the home sends this worker.

        ``after`` is the request whose turn has come. If a later one was made, this makes none.
        """
        todo = deque([partition])
        for _ in range(VISITS_AT_MOST):
            if not todo:
                return
            partition = todo.popleft()
            report = self._request(key, partition, after=after)
            after = None
            if not report:
                continue
            granted = self._grant(key, [report])
            answer = granted["answers"][0]
            self._accept(key, report, granted, answer)
            if "again_ms" in answer:
                at = monotonic() + answer["again_ms"] / 1000
                heapq.heappush(self._turns, (at, partition, key, report["number"]))
            todo += (each for each in granted.get("visits", ()) if each not in todo)
            if counts := granted.get("counts"):
                self._count(key, granted["home"], counts)

    def _count(self, key: str, home: int, counts: int) -> None:
        """Count the permits of all partitions for a home that may lack some of them."""
        reports = [self._request(key, partition, home) for partition in self._partitions]
        granted = self._grant(key, reports, counts)
        for report, answer in zip(reports, granted["answers"], strict=True):
            self._accept(key, report, granted, answer)

    def _request(
        self, key: str, partition: int, home: int | None = None, after: int | None = None
    ) -> dict[str, Any]:
        args = calls.request_permits_args(key, self._rules, home, after)
        report = json.loads(self._call(calls.REQUEST_PERMITS, args, partition))
        return report and {**report, "partition": partition}

    def _grant(
        self, key: str, reports: Sequence[dict[str, Any]], counts: int | None = None
    ) -> dict[str, Any]:
        args = calls.grant_permits_args(key, self._partitions.count, reports, self._rules, counts)
        home = self._partitions.of_key(key)
        granted = json.loads(self._call(calls.GRANT_PERMITS, args, home))
        self._ring_bells(home, granted)
        return dict(granted)

    def _accept(
        self, key: str, report: dict[str, Any], granted: dict[str, Any], answer: dict[str, Any]
    ) -> None:
        """Bring the answer of the home to a partition, unless it changes nothing there."""
        # With reported starts, too, the partition learns that the home has counted them.
        news = (
            answer["n"]
            or "lot" in answer
            or "again_ms" in answer
            or "number" in report.get("lot", ())
        )
        if answer["added"] < 0 or not news:
            return
        args = calls.accept_permits_args(key, report["run"], granted["home"], answer, self._rules)
        partition = report["partition"]
        self._ring_bells(partition, json.loads(self._call(calls.ACCEPT_PERMITS, args, partition)))

    def _ring_bells(self, partition: int, answer: Mapping[str, Any]) -> None:
        new, left = answer.get("new", ()), answer.get("left", ())
        if new or left:
            self._ring(partition, new, left)
