"""One operation at a time on the model and on the scripts, and what must be true after each.

Invariant: the model is watched from outside (`WatchedScheduler`, `WatchedRing`), so that a mistake
that it shares with the scripts breaks a rule all the same.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from copy import deepcopy
from dataclasses import replace

from redis import Redis

from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.tiers import Tier, tier_fields
from celery_fairness.control.event_types import TYPES
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.overrides import Override
from celery_fairness.scheduler.types import Claimed, Rules, Settle, Verdict, Waiting
from celery_fairness.store.library import build
from tests.model import server_state
from tests.model.clock import NOTE_AFTER_MS
from tests.model.counting import LOOK_AGAIN_MS
from tests.model.operations import KEYS, Operation, Scene
from tests.model.state import dump
from tests.model.watched import WatchedScheduler
from tests.support.library import call
from tests.support.tables import assert_sums_agree, findings

START_MS = 1_760_000_000_000
#: Leases of the past that a late or doubled settle may name.
REMEMBERED = 30
#: Numbers from here on name them.
LATE = 850


def message_of(number):
    """A message as kombu writes it, as others do, and one that says nothing."""
    headers = {"lang": "py", "task": "shop.send", "id": f"id-{number}", "stamps": {"id": "no"}}
    message = {"body": "eyI=" * 9, "headers": headers, "properties": {"headers": {"id": "no"}}}
    if number % 5 == 2:
        return f"message {number}\n 1"
    if number % 5 == 1:
        del headers["task"]
        return json.dumps(message, separators=(",", ":"))
    if number % 5 == 3:
        message["headers"] = {"stamps": {"id": "no"}, "id": 'a "quoted" one'}
    return json.dumps(message)


@functools.cache
def _library(budget):
    """Return the library with the bounds of a budget."""
    return build(
        {
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
        }
    )


class Scripts:
    """The function library with a budget, on a server."""

    def __init__(self, client: Redis, prefix: str, scene: Scene):
        self.client = client
        self.prefix = prefix
        self.budget = scene.budget
        self.library = _library(scene.budget)

    def run(self, function, args):
        return call(self.client, function, self.prefix, args, self.library)

    def dump(self):
        """Return each key's value, and how long it is kept (ms; 0 for ever)."""
        return {
            key: (self.client.dump(key), max(0, self.client.pttl(key)))
            for key in self.client.keys(self.prefix + "*")
        }

    def restore(self, keys):
        self.forget()
        for key, (value, kept_ms) in keys.items():
            self.client.restore(key, kept_ms, value)

    def forget(self):
        keys = self.client.keys(self.prefix + "*")
        if keys:
            self.client.delete(*keys)


class Both:
    """The model and the scripts, side by side."""

    def __init__(self, client: Redis, prefix: str, scene: Scene):
        self.scene = scene
        self.now = START_MS
        self.scripts = Scripts(client, prefix, scene)
        self.epoch = None
        self.granted: list[Claimed] = []
        self.tags = 0
        self.written = ""
        self.numbers = Counter()
        self.places = defaultdict(dict)
        self.heard = set()
        self.starts = 0
        self.serves = client.info("server")["run_id"]
        self.saved = None
        self._new_model()

    def _new_model(self):
        self.model = WatchedScheduler(lambda: self.now, self.scene.budget)
        self.model.clock.serves = self.serves
        #: Obituaries whose results were written.
        self.told = 0

    def run(self, operation: Operation) -> None:
        name, *values = operation
        ours, theirs = getattr(self, f"do_{name}")(*values)
        assert theirs == ours, (name, "the model", ours, "the scripts", theirs)
        self.check()

    def rules(self, enforcement: str, fairness_by: str = "", scope: str = "tenant") -> Rules:
        rules = replace(self.scene.rules, enforcement=enforcement, priority_scope=scope)
        return replace(rules, fairness_by=fairness_by) if fairness_by else rules

    # -- operations -------------------------------------------------------------------------------

    def do_put(self, queue, old, tenant, service, tier, rank, cost, eta, kind, limits, *how):
        bounds, expires = how or (None, None)
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
            limits.replace("*", tenant or "_"),
            0 if expires is None else self.now + expires,
            bounds,
            number % 16 != 15,
        )
        answer = self.scripts.run(calls.PUT, calls.put_args(waiting, str(self.now)))
        return self.model.put(waiting), calls.read_put(answer)

    def do_claim(self, owner, again, want, queues, enforcement, hears, passing, *how):
        goes_on, known, told, by, scope = how if len(how) == 5 else (*how, "", "tenant")
        if hears and not self.do_hear(queues[0])[0]:
            return None, None
        if goes_on and passing:
            passing = replace(passing, places=self.places[owner])
        if not (again and self.numbers[owner]):
            self.numbers[owner] += 1
        number, rules = self.numbers[owner], self.rules(enforcement, by, scope)
        epoch = self.known(known)
        ends = self.settles(told)
        args = calls.claim_args(
            owner, number, want, queues, rules, str(self.now), passing, epoch, ends
        )
        theirs = calls.read_claim(self.scripts.run(calls.CLAIM, args))
        replay = self.model.replies.get(owner, (None,))[0] == number
        ours = self.model.claim(owner, number, want, queues, rules, passing, epoch, ends)
        if epoch not in (None, ours.epoch):
            assert not ours.tasks, "leased before what is held was entered again"
            return ours, theirs
        self.places[owner] = {} if ours.tasks or ours.sleep_ms else ours.passed
        if not replay and ours.tasks:
            self.keep_reply(owner)
        if not replay:
            self.granted += ours.tasks
            self.starts += len(ours.tasks)
            self.heard -= set(queues)
        return ours, theirs

    def keep_reply(self, owner):
        """The server's real time passes, which is not that of the model."""
        key = f"{self.scripts.prefix}reply:{owner}"
        assert 0 < self.scripts.client.pttl(key) <= 2 * self.scene.rules.lease_ms
        self.scripts.client.persist(key)

    def do_hear(self, queue):
        """A worker hears the bell; what it does then is its own matter."""
        ring = self.model.rings.get(queue)
        for bell in ("bell", "left"):
            theirs = self.scripts.client.lpop(f"{self.scripts.prefix}{bell}:{queue}") is not None
            ours = ring is not None and getattr(ring, bell)
            if ours:
                setattr(ring, bell, False)
                self.heard.add(queue)
            if ours or theirs:
                break
        return ours, theirs

    def pick(self, number: int) -> Claimed | None:
        known = [each for each in self.granted if each.lease in self.model.running]
        if number >= LATE or not known:
            known = self.granted[-REMEMBERED:]
        return known[number % len(known)] if known else None

    def settles(self, ends) -> list[Settle]:
        notes = (Verdict.BEGUN, Verdict.ACKED)
        picked = [
            (self.pick(number), verdict, verdict in notes or number % 5 != 4)
            for number, verdict in ends
        ]
        return [
            Settle(task.lease, verdict, task.lane, begun) for task, verdict, begun in picked if task
        ]

    def do_settle(self, ends, enforcement):
        settles = self.settles(ends)
        rules = self.rules(enforcement)
        args = calls.settle_args(settles, rules, str(self.now))
        theirs = calls.read_settle(self.scripts.run(calls.SETTLE, args))
        return self.model.settle(settles, rules), theirs

    def do_next_outcome(self, enforcement, writes):
        """A worker takes an outcome and writes its result, or dies before that."""
        rules = self.rules(enforcement)
        written, self.written = self.written, ""
        self.told += any(row.text == written for row in self.model.outcomes)
        args = calls.next_outcome_args(written, rules, str(self.now))
        theirs = calls.read_next_outcome(self.scripts.run(calls.NEXT_OUTCOME, args))
        ours = self.model.next_outcome(written, rules)
        if ours is not None and writes:
            self.written = ours.text
        return ours, theirs

    def known(self, name):
        return {"": None, "now": self.epoch, "before": START_MS - 1}[name]

    def do_renew(self, picks, known):
        held = [(task.lease, task.key) for task in map(self.pick, picks) if task]
        epoch = self.known(known)
        lease_ms = self.scene.rules.lease_ms
        args = calls.renew_args(held, lease_ms, epoch, str(self.now))
        theirs = calls.read_renew(self.scripts.run(calls.RENEW, args))
        ours = self.model.renew(held, lease_ms, epoch)
        self.epoch = ours[0]
        return ours, theirs

    def do_lapse(self, picks, known):
        """A lease's time passes, in which a worker keeps some leases."""
        for _ in range(3):
            self.now += self.scene.rules.lease_ms // 3 + 1
            ours, theirs = self.do_renew(picks, known)
            assert ours == theirs
        return ours, theirs

    def do_advance(self, step):
        self.now += step
        return None, None

    def do_tiers(self, pro, free):
        tiers = [
            Tier(name, numbers[0], numbers[1], max_waiting=numbers[2])
            for name, numbers in {"pro": pro, "free": free}.items()
            if numbers
        ]
        rows = []
        for tier in tiers:
            rows += (tier.name, json.dumps(tier_fields(tier)))
        theirs = self.scripts.run(calls.PUBLISH_TIERS, ["database", "1", *rows])
        return self.model.publish_tiers(tiers), theirs[1]

    def do_tenant(self, tenant, tier, number):
        theirs = self.scripts.run(
            calls.PUBLISH_TENANT, [f"tenant:{tenant}", tier, number if tier else "", "0"]
        )
        return self.model.publish_tenant(tenant, tier, number), theirs

    def do_stop(self, how, key, wait_ms, enforcement):
        rules = self.rules(enforcement)
        args = calls.stop_args(
            how, key, wait_ms, rules.lease_ms, enforcement, str(self.now), "a reason", "an operator"
        )
        theirs = calls.read_stop(self.scripts.run(calls.STOP, args))
        ours = self.model.stop(how, key, wait_ms, rules, "a reason", "an operator")
        return ours, theirs

    def do_watch(self, wait_ms):
        args = calls.trace_args(wait_ms, str(self.now))
        return self.model.watch_tasks(wait_ms), self.scripts.run(calls.TRACE, args)

    def do_override(self, key, numbers, lasts_ms, enforcement):
        """``numbers`` None clears; ``lasts_ms`` None has no end, and below 0 it is past."""
        rules = self.rules(enforcement)
        ends_ms = None if lasts_ms is None else self.now + lasts_ms
        override = None if numbers is None else Override(dict(numbers), ends_ms)
        args = calls.override_args(
            key,
            override.text if override else "",
            *((lasts_ms, None) if lasts_ms and lasts_ms > 1_000 else (0, ends_ms)),
            '{"reason": "so"}',
            rules.lease_ms,
            enforcement,
            str(self.now),
        )
        theirs = calls.read_override(self.scripts.run(calls.OVERRIDE, args))
        return self.model.override(key, override, rules), theirs

    def do_queue(self, how, queue, numbers, parts):
        """What is said of a queue's limit, by the settings or by people."""
        rules, key = self.rules("on"), KEYS.get(queue) or queue_key(queue)
        text = numbers.text if numbers else ""
        args = calls.queue_args(how, queue, key, parts, text, rules.lease_ms, "on", str(self.now))
        theirs = self.scripts.run(calls.SET_QUEUE_LIMIT, args)
        return self.model.limit_queue(how, queue, key, rules, numbers, parts), theirs

    def tasks_of(self, queue):
        """Every task of a queue, wherever it is."""
        model = self.model
        return [
            *(
                task
                for (of, _), lanes in model.lanes.items()
                if of == queue
                for part in lanes.lists.values()
                for task in part
            ),
            *(task for _, _, task in model.later[queue]),
            *(row.task for row in model.running.values() if row.queue == queue),
            *model.dead[queue],
        ]

    def do_cancel(self, queue, picks):
        """People cancel what they have seen, which may have moved since."""
        tasks = self.tasks_of(queue)
        chosen = [
            replace(tasks[n % len(tasks)], seq=1) if n >= LATE else tasks[n % len(tasks)]
            for n in picks
            if tasks
        ]
        lease_ms = self.scene.rules.lease_ms
        records = [task.record for task in chosen]
        args = calls.cancel_args(queue, records, lease_ms, str(self.now))
        theirs = calls.read_cancel(self.scripts.run(calls.CANCEL, args))
        return self.model.cancel(queue, chosen, lease_ms), theirs

    def do_move(self, queue, others, picks, parts):
        """What people have seen goes to another queue; it may have moved since."""
        if not others:
            return None, None
        target, tasks = others[0], self.tasks_of(queue)
        chosen = [
            replace(tasks[n % len(tasks)], seq=1) if n >= LATE else tasks[n % len(tasks)]
            for n in picks
            if tasks
        ]
        given = [(task, parts[n % len(parts)]) for n, task in enumerate(chosen)]
        args = calls.reroute_args(queue, target, [(task.record, part) for task, part in given])
        theirs = calls.read_reroute(self.scripts.run(calls.REROUTE, args))
        return self.model.move(queue, target, given), theirs

    def do_requeue(self, queue, pick, knows):
        """People requeue a dead letter, whose result may not be written yet."""
        tasks = self.tasks_of(queue) if pick >= LATE else self.model.dead[queue]
        if not tasks:
            return None, None
        task = tasks[pick % len(tasks)]
        rows = [row.text for row in self.model.outcomes if row.task == task] if knows else []
        text = "".join(rows[:1])
        theirs = self.scripts.run(calls.REQUEUE, calls.requeue_args(queue, task.record, text))
        ours = self.model.requeue(queue, task, text)
        self.told += ours and text != ""
        return int(ours), theirs

    def do_gate(self, tenant, service, lease):
        key = f"tenant:{tenant}:{service}" if service else f"tenant:{tenant}"
        self.do_renew((), "")
        self.model.enter_gate_lease(key, lease, self.scene.rules.lease_ms)
        ends = self.model.leases[key][lease]
        self.scripts.client.zadd(f"{self.scripts.prefix}leases:{key}", {lease: ends})
        return None, None

    def do_ungate(self, tenant, service, lease):
        key = f"tenant:{tenant}:{service}" if service else f"tenant:{tenant}"
        self.model.release_gate_lease(key, lease)
        self.scripts.client.zrem(f"{self.scripts.prefix}leases:{key}", lease)
        return None, None

    def do_size(self, queue):
        return self.model.size(queue), tuple(self.scripts.run(calls.SIZE, calls.size_args(queue)))

    def do_purge(self, queue):
        return self.model.purge(queue), self.scripts.run(calls.PURGE, [queue])

    def do_lose(self):
        """Redis comes back empty."""
        self.scripts.forget()
        self._new_model()
        self.heard.clear()
        return None, None

    def do_save(self):
        """A file is written."""
        self.saved = self.scripts.dump(), deepcopy(self.model), self.told, self.heard.copy()
        return None, None

    def do_restore(self, by_another):
        """Redis comes back with what the file has, in the same process or in another."""
        if self.saved is None:
            return None, None
        keys, model, self.told, heard = self.saved
        self.scripts.restore(keys)
        self.model, self.heard = deepcopy(model), heard.copy()
        if by_another and self.model.clock.logical is not None:
            # Which process serves cannot be changed here: another one wrote the file.
            self.model.clock.server = "0"
            self.scripts.client.hset(f"{self.scripts.prefix}clock", "server", "0")
        return None, None

    # -- what must be true ------------------------------------------------------------------------

    def check_events(self) -> None:
        told = self.model.happenings.told[-20:] + self.model.watch.happenings.told[-20:]
        for what, fields in told:
            assert set(fields) == set(TYPES[what].fields), what

    def check(self) -> None:
        theirs = server_state.read(self.scripts.client, self.scripts.prefix)
        ours = dump(self.model)
        for table in ours:
            assert theirs[table] == ours[table], (
                table,
                {"the model": ours[table], "the scripts": theirs[table]},
            )
        self.check_places()
        self.check_rings()
        self.check_events()

    def check_tables(self) -> None:
        """Compare the tables with each other, as people do with ``celery fairness check``."""
        client, prefix = self.scripts.client, self.scripts.prefix
        assert findings(client, prefix, self.scene.rules, self.now) == []
        assert_sums_agree(client, prefix)

    def check_places(self) -> None:
        model = self.model
        waiting = model.lanes.values()
        lanes = [tasks for each in waiting for tasks in each.lists.values()]
        places = [
            *(task.tag for lane in lanes for task in lane),
            *(task.tag for each in model.later.values() for _, _, task in each),
            *(row.task.tag for row in model.running.values()),
            *(task.tag for each in model.dead.values() for task in each),
        ]
        assert len(places) == len(set(places)), "a task in two places"
        assert set(places) == model.known
        assert set(model.running) <= set(model.ends)
        assert set(model.charged) <= set(model.running)
        assert {lease for each in model.paces.began.values() for lease in each} <= set(
            model.running
        )
        running = {row.task.tag for row in model.running.values()}
        expiring = {tag for tags in model.expires.values() for tag in tags}
        assert expiring <= model.known - running, "what does not wait would expire"
        ended_alone = sum(
            model.counts.get(name, 0)
            for name in ("abandoned", "dead_lettered", "dropped", "cancelled", "expired_waiting")
        )
        assert ended_alone == len(model.outcomes) + self.told, "an end that nobody tells"

    def check_counts(self, logical: int) -> None:
        """What runs counts until it ends; other leases until their time is over."""
        running = {
            (key, lease) for lease, row in self.model.running.items() for key in row.task.keys
        }
        counted = {(key, lease) for key, each in self.model.leases.items() for lease in each}
        assert running <= counted
        for key, leases in self.model.leases.items():
            live = [name for name, end in leases.items() if (key, name) in running or end > logical]
            assert self.model.held(key, logical) == len(live)
            assert all(end < float("inf") or (key, name) in running for name, end in leases.items())

    def check_rings(self) -> None:
        model, rules = self.model, self.rules("on")
        # Steps that are too short to be noted count all the same.
        logical = model.clock.read(self.now, rules.lease_ms)
        self.check_counts(logical)
        for queue, ring in model.rings.items():
            waiting = {key for other, key in model.lanes if other == queue}
            assert waiting == set(ring.members) | set(ring.full)
            assert not set(ring.members) & set(ring.full)
            assert not set(ring.out) & waiting
            if ring.members or model.parking.candidate(queue):
                told = queue in self.heard or self.model.opens_alone(queue, logical, rules)
                assert ring.bell or ring.left or told, "nobody will be woken"
            for key in ring.full:
                if not model.lanes[queue, key].in_order():
                    continue
                assert model.accounts[key].closed
                if model.is_open(key, logical, rules):
                    self.check_something_is_due(key, logical)
        assert set(model.accounts) == {key for _, key in model.lanes}
        assert set(model.closed) == {k for k, each in model.accounts.items() if each.closed}

    def check_something_is_due(self, key: str, logical: int) -> None:
        now = self.model.news.version + 1
        judged_long_ago = -now < self.model.closed[key] < now
        # The time of the call that closed it may be ahead of the clock by what is not noted.
        soon = logical + LOOK_AGAIN_MS + NOTE_AFTER_MS
        looked_at_soon = self.model.ends.get(" " + key, float("inf")) < soon
        assert judged_long_ago or looked_at_soon or self.has_ended(key), f"nothing opens {key}"

    def has_ended(self, key: str) -> bool:
        """Say whether what a person said of a tenant has ended, which the next claim will see."""
        override = self.model.overrides.rows.get(key)
        of_all = f"tenant:{self.model.accounts[key].tenant}"
        ends = [self.model.stops.paused_until.get(each) for each in (key, of_all)]
        return any(
            end is not None and end <= self.now for end in (*ends, override and override.ends_ms)
        )

    # -- the end ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let everything run and end; then nothing but what lives for ever is left."""
        prefix, client = self.scripts.prefix, self.scripts.client
        self.run(("tiers", (None, 1.0, None), (None, 1.0, None)))
        for tenant in self.scene.tenants[1:]:
            self.run(("tenant", tenant, "", ""))
        for key in sorted({*self.model.stops.paused, *self.model.stops.paused_until}):
            self.run(("stop", "resume", key, 0, "on"))
        for key in sorted(self.model.overrides.rows):
            self.run(("override", key, None, None, "on"))
        self.clear_queues()
        self.now += 10 * 3_600_000
        for _ in range(2_000):
            self.now += self.scene.rules.lease_ms // 3
            claim = self.run_claim_of_all()
            running = [Settle(lease, Verdict.DONE, "tenant:x 0 q") for lease in self.model.running]
            if running:
                args = calls.settle_args(running, self.rules("on"), str(self.now))
                self.scripts.run(calls.SETTLE, args)
                self.model.settle(running, self.rules("on"))
            left = any((self.model.lanes, self.model.ends, *self.model.later.values()))
            if not claim.tasks and not running and not left:
                break
            if not claim.tasks and not running:
                # What a limit of 0 keeps waits for a person.
                for queue in self.scene.queues:
                    self.run(("purge", queue))
        else:
            raise AssertionError("it does not end")
        while self.model.idle or self.model.stops.cooled:
            self.now += self.scene.rules.lease_ms // 3
            self.run_claim_of_all()
        # What was handed out and not written is handed out again after a lease.
        for _ in range(len(self.model.outcomes) + 6):
            self.now += self.scene.rules.lease_ms // 3 + 1
            self.run(("next_outcome", "on", True))
        self.clear_queues()
        assert not self.model.queues.rows
        self.check()
        dead = {f"dead:{queue}" for queue, tasks in self.model.dead.items() if tasks}
        for_ever = {"clock", "sequence", "tiers", "news", "counts", "events", "exceeded"} | dead
        for key in set(server_state.keys_of(client, prefix)) - for_ever:
            kind = key.partition(":")[0]
            if kind in ("minute", "reply") or kind.endswith("_events"):
                continue
            if kind == "leases":
                # They end by themselves: the gate's, and those of a lost memory.
                assert not client.zcount(prefix + key, "+inf", "+inf")
            elif kind in ("pace", "rescheduled", "declared"):
                # What a key knows of its pace, and its newest numbers, go by themselves.
                assert client.pttl(prefix + key) > 0
            elif key == "known":
                tags = {task.tag for tasks in self.model.dead.values() for task in tasks}
                assert client.smembers(prefix + key) == tags
            else:
                raise AssertionError(f"left behind: {key}")

    def clear_queues(self):
        for queue in sorted(self.model.queues.rows):
            self.run(("queue", "declare", queue, None, False))
            self.run(("queue", "clear", queue, None, False))

    def run_claim_of_all(self):
        self.numbers["drain"] += 1
        number, rules = self.numbers["drain"], self.rules("on")
        args = calls.claim_args("drain", number, 6, self.scene.queues, rules, str(self.now))
        theirs = calls.read_claim(self.scripts.run(calls.CLAIM, args))
        ours = self.model.claim("drain", number, 6, self.scene.queues, rules)
        assert theirs == ours, (theirs, ours)
        if ours.tasks:
            self.keep_reply("drain")
        self.heard.clear()
        return ours
