"""Another installation, and the move of its tasks into that of the app.

The other one may be on another server, and may have another namespace and another number of
partitions. Workers and producers of both may run meanwhile.

Tasks leave it in pages (``store/lua/moves.lua``)::

    taken out there -> brought in here -> deleted there

Invariant: each task is in exactly one of the two installations, and while its page is open no
worker starts it. After a death at any moment the next move goes on with the open page.

Weakness: a page is remembered here for a day. If Redis itself loses its last writes, a page may
come twice, and its tasks that have ended run again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import sleep

from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.config.queue_policy import QUEUE_NAME
from celery_fairness.control.health.table_check import Progress
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import Reader
from celery_fairness.control.installation.task_records import TaskHead, read_head
from celery_fairness.control.key.shared_changes import SharedChanges, changes_of
from celery_fairness.control.queue.queue_status import all_queues
from celery_fairness.errors import LimiterUnavailable, NotFound, PolicyInvalid, suggestion
from celery_fairness.limiter.partitioned import connect
from celery_fairness.limiter.redis import Limiter
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Waiting
from celery_fairness.store.address import Address, address_of_other, hide_password
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport import TRANSPORTS
from celery_fairness.transport.envelope import placed
from celery_fairness.transport.options import key_prefixes
from celery_fairness.util.ids import new_id
from celery_fairness.util.value import Value

#: Tasks of one page.
AT_MOST = 100
#: The pause between looks of a move that goes on, in seconds.
AGAIN_SECONDS = 1.0
#: The option that has the address, for messages.
OPTION = "--from"


class MovedHere(Value):
    """The result of a move from another installation.

    Attributes:
        source: The address and the namespace of the other installation.
        moved: The number of moved tasks of each queue.
        copied: Pauses and overrides that were copied, such as ``pause api.stripe.com``.
        running: The number of tasks of these queues that its workers run.
        waiting: The number of tasks of these queues that wait there: they came at the end, or the
            move was interrupted.
    """

    source: str
    moved: dict[str, int]
    copied: tuple[str, ...]
    running: int
    waiting: int


def open_other(
    installation: Installation, url: str, namespace: str | None = None, prefix: str | None = None
) -> Installation:
    """Return another installation, with the number of partitions that is stored there.

    Args:
        installation: That of the app.
        url: The broker URL of the other one.
        namespace: Its namespace. None is that of the app.
        prefix: Its ``global_keyprefix``. None is that of the app.

    Raises:
        SettingsError: The address cannot be read, or the list of servers is another one.
        ValueError: It has a scheme of another transport.
        NotFound: There is no installation.
        LimiterUnavailable: Redis does not answer, or answers with an error.
    """
    if url.partition("://")[0] not in TRANSPORTS:
        schemes = ", ".join(f"{each}://" for each in TRANSPORTS)
        raise ValueError(
            f"{OPTION}: expected the URL of a broker with one of {schemes}, got: "
            f"{hide_password(url)}"
        )
    app = installation.app
    address = address_of_other(app, url, OPTION)
    options = app.conf.broker_transport_options or {}
    given = str(options.get("global_keyprefix") or "") if prefix is None else prefix
    settings = installation.settings.model_copy(
        update={"namespace": namespace or installation.settings.namespace}
    )
    before = key_prefixes(settings, given, address.is_cluster).ours

    def limiter_of(address: Address, count: int) -> Limiter:
        its = settings.model_copy(update={"partitions": count})
        partitions = Partitions(its.namespace, before, count)
        connection = connect(address, partitions, its, timeout_seconds=2.0, retries=1)
        connection.check()
        return Limiter(connection, its, key_prefix=before, partitions=count)

    first = address
    if address.is_divided:
        first = replace(address, urls=(address.url(0),), is_divided=False)
    home = limiter_of(first, 1)
    fixed = home.there.read("HGET", home.names.clock, "partitions")
    if not home.there.read("EXISTS", home.names.clock, home.names.tasks):
        raise NotFound(
            "installation", settings.namespace, f"is not at {address}: expected its namespace"
        )
    home.close()
    count = int(fixed or 1)
    limiter = limiter_of(address, count)
    limiter.load_library()
    its = settings.model_copy(update={"partitions": count})
    return Installation(app, its, True, limiter, installation.tier_cache, installation.environ)


class Move:
    """Moves tasks of queues from another installation into that of the app.

    Args:
        here: The installation of the app.
        other: The other one.
        queues: The queues. Without one, those that have tasks there.
        progress: Called after each page with the number of moved tasks.

    Raises:
        ValueError: A name is no name of a queue, or the app has another broker.
        NotFound: Nothing names the queue, and it has no task there.
    """

    def __init__(
        self,
        here: Installation,
        other: Installation,
        queues: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        here.expect_claims()
        self._here, self._other, self._progress = here, other, progress
        self._wanted = tuple(queues)
        self._moved = Counter[str]()
        for queue in self._wanted:
            self._expect_known(queue)

    def run(self, follow: bool = False) -> MovedHere:
        """Move until no task is left, or with ``follow`` until a KeyboardInterrupt.

        An interrupt ends the page that is open.

        Raises:
            PolicyInvalid: A task has a limit that is an error here. It stays, with all behind it.
            LimiterUnavailable: One of the servers does not answer, or answers with an error. If a
                page is open, its tasks start again after the next move.
        """
        self._here.limiter.meet_home()
        copied = tuple(self._copy_changes())
        try:
            while self._pass(self._queues()) or follow:
                if follow:
                    sleep(AGAIN_SECONDS)
        except KeyboardInterrupt:
            self._pass(())
        return self._result(copied)

    @property
    def moved(self) -> int:
        """The number of tasks that have moved."""
        return self._moved.total()

    def _expect_known(self, queue: str) -> None:
        if not QUEUE_NAME.accepts(queue):
            raise ValueError(QUEUE_NAME.problem("queue", queue))
        known = {*self._here.settings.queues, *self._here.app_queues(), *self._with_tasks()}
        if queue not in known:
            raise NotFound(
                "queue",
                queue,
                "is not known: expected one that the app names, or that has tasks in the other "
                f"installation{suggestion(queue, known)}",
            )

    def _with_tasks(self) -> set[str]:
        """Return the queues in which tasks wait there, or are dead letters."""
        found = self._other.reader.sums(
            lambda keys: [("HKEYS", keys.waiting), ("SMEMBERS", keys.queues)]
        )
        names = {name for its in found for name in its}
        return {name for name in names if not name.startswith(PARKED_QUEUES)}

    def _queues(self) -> Sequence[str]:
        return self._wanted or sorted(self._with_tasks())

    def _pass(self, queues: Sequence[str]) -> int:
        """Move what is there now, and the open page of each partition; return the number."""
        before = self.moved
        for part in self._other.reader.parts:
            self._empty(part, queues)
        return self.moved - before

    def _empty(self, part: Reader, queues: Sequence[str]) -> None:
        """Move all pages of one partition of the other installation."""
        lease_ms, closed, its = self._other.lease_ms, None, Counter[str]()
        while True:
            args = calls.move_out_args(new_id(12), queues, AT_MOST, lease_ms, closed)
            answer = part.call(calls.MOVE_OUT, args)
            self._moved += its
            if closed is not None and self._progress:
                self._progress(self.moved)
            if not answer:
                return
            closed, *rows = answer
            its = self._bring_in(part, str(closed), rows)

    def _bring_in(self, part: Reader, page: str, rows: Sequence[Sequence[str]]) -> Counter[str]:
        """Bring a page in; return the number of its tasks by queue."""
        lease_ms = self._here.lease_ms
        try:
            there, queues = self._divide(rows)
            for partition, its in there.items():
                args = calls.move_in_args(page, its, lease_ms)
                self._here.reader.parts[partition].call(calls.MOVE_IN, args)
        except (PolicyInvalid, LimiterUnavailable) as error:
            is_same = str(error.__cause__).startswith("SAME")
            if not (is_same or isinstance(error, PolicyInvalid)):
                raise
            args = calls.move_out_args("", (), 0, self._other.lease_ms, page, back=True)
            part.call(calls.MOVE_OUT, args)
            if not is_same:
                raise
            raise ValueError(
                f"{OPTION}: expected another installation than that of the app, got: the same"
            ) from None
        return queues

    def _divide(self, rows: Sequence[Sequence[str]]) -> tuple[dict[int, list[str]], Counter[str]]:
        """Return the tasks of a page by the partition that each has here, and by queue."""
        there, queues = defaultdict[int, list[str]](list), Counter[str]()
        for tag, head, message, place, expires, unique in rows:
            task = read_head(tag, head)
            if task is None:
                raise PolicyInvalid(f"task {tag}: expected a head of a task, got: {head!r}")
            partition, new_tag = self._place(task, unique)
            there[partition] += (new_tag, head, message, place, expires, unique)
            queues[task.queue] += 1
        return there, queues

    def _place(self, task: TaskHead, unique: str) -> tuple[int, str]:
        """Return the partition and the delivery tag that a task has here."""
        waiting = Waiting(
            task.queue,
            self._other.limiter.partitions.bare_tag(task.tag),
            task.tenant,
            limits=task.limits,
            unique=unique and f"d|0|{unique.partition(' ')[2]}",
            task_id=task.task_id,
        )
        try:
            partition, waiting = placed(waiting, self._here.limiter.partitions)
        except PolicyInvalid as error:
            raise PolicyInvalid(
                f"task {task.task_id or task.tag} of queue {task.queue} stays, with all behind it, "
                f"until the workers there have run it or it is cancelled there: {error}"
            ) from None
        return partition, waiting.tag

    def _copy_changes(self) -> Iterator[str]:
        """Pause and override the keys that are so there, unless they are changed here."""
        makes, here = SharedChanges(self._here), self._here
        stores = list(zip(here.limiter.stores, here.reader.stores, strict=True))
        has = [changes_of(reader) for _, reader in stores]
        wanted = {
            change: text
            for reader in self._other.reader.stores
            for change, text in changes_of(reader).items()
        }
        for change, text in wanted.items():
            key = change.partition(" ")[2]
            # The home has no change of a tenant.
            its = here.limiter.parts_of_key(key) if key.startswith("tenant:") else None
            missing = [
                reader
                for (limiter, reader), known in zip(stores, has, strict=True)
                if (its is None or limiter in its) and change not in known
            ]
            for reader in missing:
                makes.make(reader, change, text)
            if missing:
                yield change

    def _result(self, copied: tuple[str, ...]) -> MovedHere:
        queues = set(self._queues())
        rows = [
            each for each in all_queues(self._other) if each.queue in queues or not self._wanted
        ]
        limiter = self._other.limiter
        return MovedHere(
            source=f"{limiter.connection.address}, namespace {limiter.partitions.namespace}",
            moved=dict(sorted(self._moved.items())),
            copied=copied,
            running=sum(each.running for each in rows),
            waiting=sum(each.waiting + each.delayed + each.dead for each in rows),
        )
