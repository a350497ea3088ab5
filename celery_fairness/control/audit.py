"""The audit: tables of an installation that must agree, compared while tasks come and go.

Everything is read once, in pieces; what did not agree is looked at a second time at the end, and
only what does not agree then either is told. Memory is bounded: eight bytes for each of a bounded
number of tags, and a bounded number of doubts.

Weakness: a look for a tag that is in no table is not of one moment. A task that moved from one
table to another behind every look would be told wrongly.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

from celery_fairness.control.checks import (
    Check,
    KeptRecord,
    LeaseOfTask,
    NumberKnown,
    WaitingTask,
)
from celery_fairness.control.keys import ORDER_LENGTH, read_record, read_row, tag_of
from celery_fairness.control.owners import Owners
from celery_fairness.control.scan import Command, Reader, batches
from celery_fairness.control.sums import SumOfKey, SumOfQueue
from celery_fairness.control.views import Audit, Finding
from celery_fairness.scheduler.types import Rules

#: Things that did not agree at the first look, and that are remembered for the second.
DOUBTS_AT_MOST = 1000
#: Things that one call compares; a place in a queue is a command for each lane, and a few.
BATCH = 20
#: Tags that one call asks for.
TAGS = 500
#: Tags that are compared by name; of more, only their number.
NAMES_AT_MOST = 1_000_000

#: Further looks for a tag that was nowhere.
LOOKS = 3

#: TaskFilter of keys that hold waiting tasks.
_WAITING = ("lane", "back", "later")


class Auditor:
    """One audit of one installation.

    Args:
        reader: Of the installation.
        rules: What its workers' settings say.
    """

    def __init__(self, reader: Reader, rules: Rules) -> None:
        self._reader = reader
        self._rules = rules
        self._keys = reader.keys
        #: What did not agree, and how to look again; by what was looked at, so each stands once.
        self._doubts: dict[object, tuple[list[Finding], Callable[[], list[Finding]]]] = {}
        self._compared: Counter[str] = Counter()
        self._notes: dict[str, None] = {}

    def run(self) -> Audit:
        """Compare everything."""
        before = self._known_before()
        owners = Owners(self._reader, self._rules, self._compared, self._note)
        for checks in batches(chain(self._leases(), owners.checks()), BATCH):
            self._look(checks)
        self._sums()
        self._doubt("number", self._number(), self._number)
        self._tags(before)
        findings: dict[Finding, None] = {}
        for first, again in self._doubts.values():
            told = {(each.check, each.name) for each in first}
            findings.update((each, None) for each in again() if (each.check, each.name) in told)
        return Audit(
            findings=tuple(findings), compared=dict(self._compared), notes=tuple(self._notes)
        )

    # -- looking ----------------------------------------------------------------------------------

    def _look(self, checks: Sequence[Check]) -> None:
        for check, found in self._ask(checks):
            self._doubt(check, found, partial(self._again, check))

    def _again(self, check: Check) -> list[Finding]:
        return next(self._ask([check]))[1]

    def _ask(self, checks: Sequence[Check]) -> Iterator[tuple[Check, list[Finding]]]:
        commands: list[Command] = []
        sizes = []
        for check in checks:
            asked = check.commands(self._keys)
            sizes.append(len(asked))
            commands += asked
        answers = self._reader.together(commands)
        start = 0
        for check, size in zip(checks, sizes, strict=True):
            yield check, list(check.findings(answers[start : start + size]))
            start += size

    def _doubt(
        self, what: object, found: list[Finding], again: Callable[[], list[Finding]]
    ) -> None:
        if not found:
            return
        if len(self._doubts) < DOUBTS_AT_MOST:
            self._doubts[what] = (found, again)
        else:
            self._note(f"only the first {DOUBTS_AT_MOST} differences were looked at twice and told")

    def _note(self, text: str) -> None:
        self._notes[text] = None

    # -- leases -----------------------------------------------------------------------------------

    def _leases(self) -> Iterator[Check]:
        reader, keys = self._reader, self._keys
        for lease, text in reader.pairs("HSCAN", keys.running):
            self._compared["running"] += 1
            row = read_row(text)
            if row is None:
                found = [Finding("a record can be read", lease, "a row of running", "another")]
                again = partial(self._while_there, found, "HEXISTS", keys.running, lease)
                self._doubt(lease, found, again)
            else:
                yield LeaseOfTask(lease, row.task.keys)
        for lease, _ in reader.pairs("ZSCAN", keys.ends):
            # What begins with a space is a tenant that is judged anew then.
            if not lease.startswith(" "):
                yield LeaseOfTask(lease)
        for lease, _ in reader.pairs("HSCAN", keys.charged):
            yield LeaseOfTask(lease)

    def _while_there(self, found: list[Finding], *command: str) -> list[Finding]:
        return found if self._reader.read(*command) else []

    # -- sums -------------------------------------------------------------------------------------

    def _sums(self) -> None:
        for queue, _ in self._reader.pairs("HSCAN", self._keys.waiting):
            self._compared["queues"] += 1
            self._sum(queue, SumOfQueue(self._reader, queue))
        for key, _ in self._reader.pairs("HSCAN", self._keys.gate_waiting):
            self._sum(key, SumOfKey(self._reader, key))

    def _sum(self, name: str, total: SumOfQueue | SumOfKey) -> None:
        found = total.findings()
        if found is None:
            self._note(f"{name}: too many tenants come and go to compare their sum")
        else:
            self._doubt(("sum", name), found, partial(_or_nothing, total))

    def _number(self) -> list[Finding]:
        queues = (tuple(sorted(set(self._reader.names(kind)))) for kind in ("later", "dead"))
        return self._again(NumberKnown(*queues))

    # -- tags -------------------------------------------------------------------------------------

    def _known_before(self) -> array[int] | None:
        """Return what stands for the tags that are known now; None where they are too many."""
        if self._reader.read("SCARD", self._keys.known) > NAMES_AT_MOST:
            self._note(f"more than {NAMES_AT_MOST} tasks: their number was compared, not each tag")
            return None
        return array("q", sorted(map(hash, self._reader.members(self._keys.known))))

    def _tags(self, before: array[int] | None) -> None:
        """Compare the tags that are known with those of tasks that are somewhere, both ways."""
        seen, back = array("q"), array("q")
        for some in batches(self._tasks(), TAGS):
            if before is not None:
                seen.extend(hash(task.tag) for task in some)
            back.extend(hash(task.tag) for task in some if task.kind == "back")
            self._compared["waiting"] += sum(task.kind in _WAITING for task in some)
            self._compared["dead"] += sum(task.kind == "dead" for task in some)
            kept = [task for task in some if task.kind != "running"]
            for batch in batches(self._unsure(kept), BATCH):
                self._look(batch)
        seen, back = array("q", sorted(seen)), array("q", sorted(back))
        members = self._reader.members(self._keys.known) if before is not None else ()
        strays = {
            tag: [Finding("known is somewhere", tag, "a task that waits, runs or is dead", "none")]
            for tag in members
            if before is not None and _has(before, hash(tag)) and not _has(seen, hash(tag))
        }
        for _ in range(LOOKS):
            if strays:
                for task in self._tasks():
                    strays.pop(task.tag, None)
        for tag, found in strays.items():
            again = partial(self._while_there, found, "SISMEMBER", self._keys.known, tag)
            self._doubt(("known", tag), found, again)
        for tag, record in self._reader.pairs("HSCAN", self._keys.returned):
            if not _has(back, hash(tag)):
                self._record_without_tag(tag, record)

    def _unsure(self, tasks: list[WaitingTask]) -> list[WaitingTask]:
        """Return the tasks that are not known, and those that came back."""
        if not tasks:
            return []
        tags = (task.tag for task in tasks)
        known = self._reader.read("SMISMEMBER", self._keys.known, *tags)
        return [
            task
            for task, is_known in zip(tasks, known, strict=True)
            if task.kind == "back" or not is_known
        ]

    def _record_without_tag(self, tag: str, record: str) -> None:
        """Look whether a record of a task that came back has its tag in a lane."""
        task = read_record(record)
        of_task = (task.key, task.lane, task.kind) if task is not None else ("", "", "")
        look = partial(self._kept_for_nothing, tag, *of_task)
        self._doubt(("returned", tag), look(), look)

    def _kept_for_nothing(self, tag: str, key: str, lane: str, kind: str) -> list[Finding]:
        fields = self._reader.read("HKEYS", self._keys.of("account", key))
        queues = tuple(sorted(each[2:] for each in fields if each[:2] == "q:"))
        return self._again(KeptRecord(tag, key, lane, kind, queues))

    def _tasks(self) -> Iterator[WaitingTask]:
        """Yield every task there is, in the order in which tasks move."""
        reader, keys = self._reader, self._keys
        for name in reader.names("later"):
            for member, _ in reader.pairs("ZSCAN", keys.of("later", name)):
                yield from self._task("later", name, member, member[ORDER_LENGTH:])
        for name in reader.names("lane"):
            for record in reader.list_items(keys.of("lane", name)):
                yield from self._task("lane", name, record, record)
        for lease in self._leases_of_running():
            yield WaitingTask(tag_of(lease), "running", "", lease)
        for name in reader.names("back"):
            for tag, _ in reader.pairs("ZSCAN", keys.of("back", name)):
                yield WaitingTask(tag, "back", name, tag)
        for lease in self._leases_of_running():
            yield WaitingTask(tag_of(lease), "running", "", lease)
        for name in reader.names("dead"):
            for record in reader.list_items(keys.of("dead", name)):
                yield from self._task("dead", name, record, record)

    def _leases_of_running(self) -> Iterator[str]:
        for lease, _ in self._reader.pairs("HSCAN", self._keys.running):
            yield lease

    def _task(self, kind: str, name: str, member: str, record: str) -> Iterator[WaitingTask]:
        task = read_record(record)
        if task is not None:
            yield WaitingTask(task.tag, kind, name, member)
            return
        where = f"{kind}:{name}"
        found = [Finding("a record can be read", where, "a task", "another text")]
        key = self._keys.prefix + where
        self._doubt(where, found, partial(self._while_there, found, "EXISTS", key))


def _has(values: array[int], value: int) -> bool:
    place = bisect_left(values, value)
    return place < len(values) and values[place] == value


def _or_nothing(total: SumOfQueue | SumOfKey) -> list[Finding]:
    return total.findings() or []
