"""One operation at a time on the function library, each answer given to the reference."""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from celery_fairness.config.numbers import write_numbers
from celery_fairness.config.queue_limits import write_queue
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.tiers import Tier, write_tier
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claimed, Rules, Settle, SkippedTasks, Verdict, Waiting
from celery_fairness.store.library import Library, build, is_missing, load
from tests.reference.limits import LOG_KEPT_MS
from tests.reference.objection import Objection, require
from tests.reference.observed import Observed, Observer
from tests.reference.operations import KEYS, Operation, Scene
from tests.reference.reference import Reference
from tests.reference.tasks import Task

START_MS = 1_760_000_000_000
#: Leases of the past that a late or doubled settle may name.
REMEMBERED = 30
#: Numbers from here on name them, or a task that has changed since.
LATE = 850
#: Claims after which everything must have ended.
ROUNDS = 2_000
#: The time after which a task goes as one of the highest priority, if claims request that.
AGING_MS = 500
#: Keys that live for ever, as one key or one for each worker and minute.
KEPT = {
    "clock",
    "tiers",
    "counters",
    "events",
    "kept_events",
    "trace",
    "stats",
    "last_answer",
}
#: Keys of dead letters.
RECORDS = {"dead", "tasks", "messages", "ids", "same_id", "queues"}
#: Keys that end by themselves.
ENDING = {"backoff", "rescheduled", "declared", "copy", "freed"}


def message_of(number: int) -> str:
    """Return a message as kombu writes it, or one without headers."""
    headers = {"lang": "py", "task": "shop.send", "id": f"id-{number}"}
    message = {"body": "eyI=" * 9, "headers": headers, "properties": {}}
    return f"message {number}\n 1" if number % 5 == 2 else json.dumps(message)


def limits_in(queue: str, limits: str) -> str:
    """Return limits without the partitions of other queues: a moved task loses its partition."""
    own = f"{KEYS[queue]}:"
    words = [word for word in limits.split(",") if "|q|" not in word or word.startswith(own)]
    return ",".join(words)


@functools.cache
def library_of(budget: Any) -> Library:
    """Return the library with the bounds of a budget."""
    return build(constants_of(budget))


def constants_of(budget: Any) -> dict[str, int]:
    """Return the bounds of a budget by their names in the modules."""
    return {
        "DUE_AT_MOST": budget.due,
        "MOVES_AT_MOST": budget.moves,
        "PASSED_AT_MOST": budget.passed,
        "FULL_LANES_AT_MOST": budget.lanes,
        "PURGED_AT_MOST": budget.purged,
        "TAGS_AT_MOST": budget.tags,
        "PUMPED_AT_MOST": budget.looks,
        "IDLE_AT_MOST": budget.idle,
        "UNIT_BYTES": budget.unit_bytes,
        "TAKEN_AT_MOST": budget.taken,
        "TRIES_AT_MOST": budget.tries,
    }


class Walk:
    """One sequence of operations.

    Args:
        client: Of a server. It decodes answers.
        prefix: Of all keys of this walk.
        scene: What does not change.
    """

    def __init__(self, client: Redis, prefix: str, scene: Scene):
        self.client, self.prefix, self.scene = client, prefix, scene
        self.library = library_of(scene.budget)
        self.queues = self.queues_of(scene)
        self.observer = Observer(prefix, self.queues, has_events=True)
        self.now = START_MS
        self.granted: list[Claimed] = []
        self.tags = 0
        self.epoch: int | None = None
        self.written = ""
        self.numbers: Counter[str] = Counter()
        self.places: dict[str, Any] = defaultdict(dict)
        self.reference = Reference(scene.budget)
        #: Queues for which a worker took the wake-up and has not claimed since.
        self.heard: set[str] = set()

    def queues_of(self, scene: Scene) -> tuple[str, ...]:
        """Return all queues that are observed."""
        return scene.queues

    def run(self, operation: Operation) -> None:
        """Run one operation.

        Raises:
            Objection: The reference objects. The text names operation, answer and rule.
        """
        name, *values = operation
        self.answer: Any = None
        self.seen: Observed | None = None
        self.reference.at(self.now)
        try:
            getattr(self, f"do_{name}")(*values)
            if self.seen is not None:
                self.reference.check_wakes(self.queues, self.seen, self.heard, self.rules())
        except Objection as error:
            raise Objection(f"{name}{tuple(values)!r} answered {self.answer!r}: {error}") from None

    def call(self, function: str, args: Sequence[Any], owner: str = "") -> Any:
        """Call a function, and observe the server afterwards. Return the answer."""
        pipeline = self.client.pipeline(transaction=False)
        pipeline.fcall(self.library.function(function), 1, self.prefix, *args)
        # The server's real time passes, which is not that of the walk.
        pipeline.persist(f"{self.prefix}last_answer:{owner}")
        self.observer.ask(pipeline, self.now)
        try:
            self.answer, _, *seen = pipeline.execute()
        except ResponseError as error:
            if not is_missing(error):
                raise
            load(self.client.execute_command, self.library)
            return self.call(function, args, owner)
        self.seen = self.observer.read(seen)
        self.reference.note_saving(self.seen.saving)
        return self.answer

    def forget(self) -> None:
        """Delete every key."""
        keys = self.client.keys(f"{self.prefix}*")
        if keys:
            self.client.delete(*keys)
        self.observer.forget()

    def rules(self, enforcement: str = "on", by: str = "", scope: str = "tenant") -> Rules:
        aging_ms = AGING_MS if scope == "aging" else None
        scope = "queue" if aging_ms else scope
        rules = replace(self.scene.rules, enforcement=enforcement, priority_scope=scope)
        rules = replace(rules, priority_aging_ms=aging_ms)
        return replace(rules, fairness_by=by) if by else rules

    # -- workers and producers --------------------------------------------------------------------

    def do_put(
        self,
        queue,
        old,
        tenant,
        service,
        tier,
        rank,
        cost,
        eta,
        kind,
        limits,
        bounds,
        expires,
        unique="",
    ):
        if old is None:
            self.tags += 1
        number = self.tags if old is None else old
        waiting = Waiting(
            queue,
            f"tag.{number}",
            tenant,
            service if tenant else "",
            tier,
            rank,
            cost,
            0 if eta is None else self.now + eta,
            message_of(number),
            kind,
            limits_in(queue, limits).replace("*", tenant or "_"),
            0 if expires is None else self.now + expires,
            bounds,
            number % 16 != 15,
            task_id="" if number % 5 == 2 else f"id-{number}",
            unique=unique,
        )
        answer = self.call(calls.PUT, calls.put_args(waiting, str(self.now)))
        self.reference.put(waiting, calls.read_put(answer), self.seen)

    def do_claim(
        self,
        owner,
        again,
        want,
        queues,
        enforcement,
        hears,
        passing,
        goes_on,
        known,
        told,
        by,
        scope,
    ):
        if goes_on and passing:
            passing = replace(passing, places=self.places[owner])
        if not (again and self.numbers[owner]):
            self.numbers[owner] += 1
        answer = self.claim(
            owner,
            self.numbers[owner],
            want,
            queues,
            self.rules(enforcement, by, scope),
            passing,
            self.known(known),
            self.settles(told),
        )
        self.places[owner] = {} if answer.tasks or answer.sleep_ms else answer.passed

    def claim(self, owner, number, want, queues, rules, passing, epoch, ends):
        args = calls.claim_args(
            owner, number, want, queues, rules, str(self.now), passing, epoch, ends
        )
        answer = self.answer = calls.read_claim(self.call(calls.CLAIM, args, owner))
        is_replay = self.reference.replies.get(owner, (None,))[0] == number
        seen = self.seen
        self.reference.claim(owner, number, want, queues, rules, passing, epoch, ends, answer, seen)
        if not is_replay and epoch in (None, answer.epoch):
            self.heard -= set(queues)
            # A worker without a task and without a sleep claims again.
            self.heard |= set() if answer.tasks or answer.sleep_ms else set(queues)
            self.granted += answer.tasks
        return answer

    def pick(self, number: int) -> Claimed | None:
        known = [each for each in self.granted if each.lease in self.reference.leases]
        if number >= LATE or not known:
            known = self.granted[-REMEMBERED:]
        return known[number % len(known)] if known else None

    def settles(self, ends) -> list[Settle]:
        notes = (Verdict.BEGUN, Verdict.ACKED, Verdict.TAKEN)
        picked = [(self.pick(number), number, verdict) for number, verdict in ends]
        return [
            Settle(task.lease, verdict, verdict in notes or number % 5 != 4)
            for task, number, verdict in picked
            if task
        ]

    def do_settle(self, ends, enforcement):
        self.settle(self.settles(ends), self.rules(enforcement))

    def settle(self, ends, rules):
        args = calls.settle_args(ends, rules, str(self.now))
        answer = calls.read_settle(self.call(calls.SETTLE, args))
        self.reference.settle(ends, rules, answer, self.seen)

    def do_begin(self, number, verdict, known):
        """A process begins a body, or checks whether it may, now or after a memory was lost."""
        if task := self.pick(number):
            epoch = self.known(known)
            args = calls.begin_args(task.lease, verdict, epoch, str(self.now))
            answer = int(self.call(calls.BEGIN, args))
            self.reference.begin(task.lease, verdict.value, epoch, answer, self.seen)

    def do_used(self, number, key, units):
        """A body reports how many units it has used of a key, of its task or of another one."""
        if task := self.pick(number):
            rules, key = self.rules(), key.replace("*", task.key.split(":")[-1])
            args = calls.used_args(task.lease, key, units, rules, str(self.now))
            self.reference.used(
                task.lease, key, units, rules, int(self.call(calls.USED, args)), self.seen
            )

    def do_next_outcome(self, enforcement, writes):
        """A worker takes an outcome and writes its result, or dies before that."""
        rules = self.rules(enforcement)
        written, self.written = self.written, ""
        args = calls.next_outcome_args(written, rules, str(self.now))
        answer = calls.read_next_outcome(self.call(calls.NEXT_OUTCOME, args))
        self.reference.next_outcome(written, rules, answer, self.seen)
        if answer and writes:
            self.written = answer.name

    def known(self, name):
        return {"": None, "now": self.epoch, "before": START_MS - 1}[name]

    def do_renew(self, picks, known):
        held = [(task.lease, task.key) for task in map(self.pick, picks) if task]
        epoch = self.known(known)
        args = calls.renew_args(held, self.scene.rules, epoch, str(self.now))
        answer = self.answer = calls.read_renew(self.call(calls.RENEW, args))
        self.reference.renew(held, self.scene.rules, epoch, answer, self.seen)
        self.epoch = answer[0]

    def do_lapse(self, picks, known):
        """A lease's time passes, in which a worker keeps some leases."""
        for _ in range(3):
            self.now += self.scene.rules.lease_ms // 3 + 1
            self.reference.at(self.now)
            self.do_renew(picks, known)

    def do_advance(self, step):
        self.now += step

    def do_hear(self, queue):
        """A worker takes a wake-up. It may claim afterwards or not."""
        for bell in ("wakeup", "wakeup_leftover"):
            if self.client.lpop(f"{self.prefix}{bell}:{queue}"):
                self.heard.add(queue)
                break

    def do_watch(self, wait_ms):
        """A trace changes no answer."""
        self.call(calls.TRACE, calls.trace_args(wait_ms, str(self.now)))

    # -- operators --------------------------------------------------------------------------------

    def do_tiers(self, pro, free):
        given = {"pro": pro, "free": free}
        tiers = [
            Tier(name, x[0], x[1], max_waiting=x[2], rate=x[3], throttle=x[4], burst=x[5])
            for name, x in given.items()
            if x
        ]
        rows = {tier.name: write_tier(tier) for tier in tiers}
        self.call(calls.PUBLISH_TIERS, calls.tiers_args(rows, "database"))
        self.reference.publish_tiers(tiers)

    def do_tenant(self, tenant, tier, numbers):
        own = dict(numbers) if tier else {}
        text = write_numbers(_in_table(own))
        self.call(calls.PUBLISH_TENANT, calls.tenant_args(f"tenant:{tenant}", tier, text))
        self.reference.publish_tenant(tenant, tier, own)

    def do_stop(self, how, key, wait_ms, enforcement):
        rules = self.rules(enforcement)
        args = calls.stop_args(how, key, wait_ms, rules.lease_ms, enforcement, str(self.now))
        answer = calls.read_stop(self.call(calls.STOP, args))
        self.reference.hold(how, key, wait_ms, rules, answer, self.seen)

    def do_report(self, key, left, wait_ms, cool_ms):
        """An API reports; None is what it does not report."""
        rules = self.rules()
        args = calls.report_args(key, cool_ms, left, wait_ms, rules.lease_ms, str(self.now))
        answer = json.loads(self.call(calls.REPORT, args))
        self.reference.report(key, left, wait_ms, cool_ms, rules, answer, self.seen)

    def do_override(self, key, numbers, lasts_ms, enforcement):
        """``numbers`` None clears; ``lasts_ms`` None has no end, and below 0 it is past."""
        rules = self.rules(enforcement)
        ends_ms = None if lasts_ms is None else self.now + lasts_ms
        said = None if numbers is None else dict(numbers)
        text = "" if said is None else write_numbers(_in_table(said))
        lasting = (lasts_ms, None) if lasts_ms and lasts_ms > 1_000 else (0, ends_ms)
        args = calls.override_args(
            key, text, *lasting, "{}", rules.lease_ms, enforcement, str(self.now)
        )
        answer = int(calls.read_override(self.call(calls.OVERRIDE, args)))
        self.reference.override(key, said, ends_ms, rules, answer, self.seen)

    def do_queue(self, how, queue, numbers, part):
        rules, key = self.rules(), KEYS.get(queue) or queue_key(queue)
        texts = [write_queue(each) if each else "" for each in (numbers, part)]
        args = calls.queue_args(how, queue, key, *texts, rules.lease_ms, "on", str(self.now))
        answer = json.loads(self.call(calls.SET_QUEUE_LIMIT, args)).get("row", "")
        self.reference.limit_queue(how, queue, key, numbers, part, rules, answer, self.seen)

    def chosen(self, queue, picks) -> list[tuple[Task | None, str]]:
        """Return tasks of a queue, each with its tag. Some are gone."""
        tasks = [x for x in self.reference.tasks.values() if x.queue == queue]
        picked = [(tasks[number % len(tasks)], number) for number in picks if tasks]
        return [
            (None, f"{task.tag}-gone") if number >= LATE else (task, task.tag)
            for task, number in picked
        ]

    def do_cancel(self, queue, picks):
        chosen = self.chosen(queue, picks)
        lease_ms = self.scene.rules.lease_ms
        args = calls.cancel_args([tag for _, tag in chosen], lease_ms, str(self.now))
        answer = calls.read_done(self.call(calls.CANCEL, args))
        self.reference.cancel([task for task, _ in chosen], answer, self.seen, lease_ms)

    def do_move(self, queue, others, picks, parts):
        if not others:
            return
        chosen = [
            (task, tag, parts[number % len(parts)])
            for number, (task, tag) in enumerate(self.chosen(queue, picks))
        ]
        args = calls.reroute_args(others[0], [(tag, part) for _, tag, part in chosen])
        answer = calls.read_done(self.call(calls.REROUTE, args))
        given = [(task, part) for task, _, part in chosen]
        self.reference.move(others[0], given, answer, self.seen)

    def do_requeue(self, queue, pick, _):
        """People requeue a dead letter, whose result may not be written yet."""
        tasks = [x for x in self.reference.tasks.values() if x.queue == queue]
        tasks = [x for x in tasks if pick >= LATE or x.place == "dead"]
        if tasks:
            task = tasks[pick % len(tasks)]
            answer = self.call(calls.REQUEUE, [task.tag])
            self.reference.requeue(task, answer, self.seen)

    def do_size(self, queue):
        answer = tuple(self.call(calls.SIZE, calls.size_args(queue)))
        self.reference.size(queue, answer)

    def do_purge(self, queue):
        answer = self.call(calls.PURGE, [queue])
        self.reference.purge(queue, answer, self.seen)

    # -- servers ----------------------------------------------------------------------------------

    def do_lose(self):
        """Redis comes back empty."""
        self.forget()
        self.reference = Reference(self.scene.budget)
        self.reference.at(self.now)
        self.heard.clear()
        # A task that is put now may have the tag of one before, which no producer gives twice.
        self.written = ""

    # -- the end ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let everything start and end. Then only the keys of `KEPT` are left.

        Raises:
            Objection: A task does not start, or a key is left behind.
        """
        self.lift()
        self.now += 10 * 3_600_000
        last_end = self.reference.time
        for _ in range(ROUNDS):
            answer = self.claim_all()
            leases = list(self.reference.leases.values())
            ends = [Settle(x.name, Verdict.DONE) for x in leases]
            self.settle(ends, self.rules())
            is_held = ends or self.reference.admission.others
            last_end = self.reference.time if is_held else last_end
            places = {task.place for task in self.reference.tasks.values()} - {"dead"}
            is_over = self.reference.time > last_end + LOG_KEPT_MS + self.scene.rules.lease_ms
            if not places and not self.reference.admission.logs and is_over:
                break
            if answer.sleep_ms and places and not ends:
                # A task that a limit of 0 keeps waits for a person.
                for queue in self.scene.queues:
                    self.run(("purge", queue))
        else:
            raise Objection(f"everything starts and ends at last: {self.reference.tasks}")
        for _ in range(len(self.reference.outcomes) + 2):
            self.now += self.scene.rules.lease_ms // 3 + 1
            self.run(("next_outcome", "on", True))
        # Each worker renews. If nothing has a limit, that alone forgets the report of an API.
        self.run(("renew", (), "now"))
        self.lift()
        self.check_kept()

    def claim_all(self) -> Any:
        """Claim of all queues, a third of a lease later."""
        self.now += self.scene.rules.lease_ms // 3
        self.reference.at(self.now)
        self.numbers["drain"] += 1
        number, queues = self.numbers["drain"], self.scene.queues
        return self.claim("drain", number, 6, queues, self.rules(), SkippedTasks(), None, ())

    def lift(self) -> None:
        """Operators lift everything that they have set."""
        free = (None, 1.0, None, None, None, None)
        self.run(("tiers", free, free))
        for tenant in self.scene.tenants[1:]:
            self.run(("tenant", tenant, "", ()))
        admission = self.reference.admission
        for key in sorted(admission.paused):
            self.run(("stop", "resume", key, 0, "on"))
        for key in sorted(admission.cooled):
            self.run(("stop", "clear", key, 0, "on"))
        for key in sorted(admission.overrides):
            self.run(("override", key, None, None, "on"))
        for queue in sorted(admission.queue_limits):
            for how in ("declare", "clear"):
                self.run(("queue", how, queue, None, None))

    def check_kept(self) -> None:
        """Invariant 5: a tenant or key with nothing waiting or running uses no memory."""
        dead = {tag for tag, task in self.reference.tasks.items() if task.place == "dead"}
        for key in self.client.keys(f"{self.prefix}*"):
            name = key.removeprefix(self.prefix)
            kind = name.partition(":")[0]
            is_kept = kind in KEPT or (dead and kind in RECORDS)
            if kind in ENDING:
                is_kept = self.client.pttl(key) > 0
            require(is_kept, "a key that nobody needs is deleted", key=name)


def _in_table(said: dict[str, Any]) -> dict[str, Any]:
    """Return the reference's numbers by the names and in the forms of the package."""
    forms = {
        "concurrency": ("concurrency", lambda value: value),
        "rates": ("rate", lambda value: value or None),
        "throttle": ("throttle", lambda value: value and (value,)),
        "burst": ("burst", lambda value: value),
    }
    return {forms[name][0]: forms[name][1](value) for name, value in said.items()}
