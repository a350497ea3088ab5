"""Small mistakes in the library, each of which breaks a rule of the specification."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from celery_fairness.store.library import Library
from tests.reference.walk import library_of


class Mistake(NamedTuple):
    """One edit of the library's text.

    Attributes:
        what: What the library does wrong.
        old: A part of one line, which occurs once, or once behind ``after``.
        new: What stands there instead.
        subject: The scenes in which the reference objects (`FOCUSES`).
        after: The line before which the edit does not begin. "" is the beginning.
        seed: Of a sequence in which the reference objects.
    """

    what: str
    old: str
    new: str
    subject: str
    after: str = ""
    seed: int = 0


MISTAKES = (
    # Order.
    Mistake(
        "the tenant with the latest start goes first",
        'Keys.ACTIVE .. queue, at, at, "WITHSCORES"',
        'Keys.ACTIVE .. queue, -1 - at, -1 - at, "WITHSCORES"',
        "order",
        "function Active.member_at",
    ),
    Mistake(
        "a tenant that was idle keeps its old start",
        "local start = Active.virtual_time(ctx, queue)",
        "local start = 0",
        "order",
        "function Active.enter_from(",
        seed=8,
    ),
    Mistake(
        "a debt is forgiven at entry",
        "start = math.max(start, tonumber(finish))",
        'start = string.find(from, ":debts:", 1, true) and start or math.max(start, finish)',
        "order",
        seed=1,
    ),
    Mistake(
        "a tenant that was blocked keeps its old start",
        "start = math.max(start, tonumber(finish))",
        'local kept = string.find(from, ":blocked:", 1, true) '
        "start = math.max(kept and 0 or start, tonumber(finish))",
        "order",
        seed=1,
    ),
    Mistake(
        "the weight of a tier is ignored",
        "local charge = cost / weight",
        "local charge = cost",
        "order",
        seed=3,
    ),
    Mistake(
        "a lane is last in, first out",
        '"ZPOPMIN", name',
        '"ZPOPMAX", name',
        "order",
    ),
    Mistake(
        "the lowest priority goes first",
        "(9 - tonumber(string.sub(lane, 1, 1))) * Lanes.AFTER_ALL",
        "tonumber(string.sub(lane, 1, 1)) * Lanes.AFTER_ALL",
        "order",
    ),
    Mistake(
        "debts are never forgotten",
        "if wanted then return",
        "if false then return",
        "order",
        seed=1,
    ),
    Mistake(
        "debts are always forgotten",
        "if wanted then return",
        "if true then return",
        "order",
    ),
    Mistake(
        "a due task goes before those that wait",
        "task.seq = Tasks.next_seq(ctx)",
        "task.seq = task.seq",
        "delayed",
        "function Schedule.enqueue_due(",
    ),
    Mistake(
        "a task that comes back goes behind its lane",
        "task.attempt = tonumber(row.attempt)",
        "task.attempt = tonumber(row.attempt) task.seq = Tasks.next_seq(ctx)",
        "order",
        "function Settle.end_attempt(",
    ),
    Mistake(
        "the last waiter of a limit goes first",
        'Keys.GROUP .. group .. " " .. queue, 0, 0, "WITHSCORES"',
        'Keys.GROUP .. group .. " " .. queue, -1, -1, "WITHSCORES"',
        "shared",
        "function Blocked.of_limit",
    ),
    Mistake(
        "one queue is served until it is empty",
        "if not rounds.strict then rounds.turn = rounds.turn + 1 end",
        "",
        "order",
    ),
    # Limits.
    Mistake(
        "a limit lets one more start",
        "Limits.held_of(ctx, limit.key, rules) >= limit.concurrency",
        "Limits.held_of(ctx, limit.key, rules) > limit.concurrency",
        "limits",
    ),
    Mistake(
        "a tenant runs one more task",
        "math.max(0, limit - held)",
        "math.max(0, limit - held + 1)",
        "limits",
        seed=2,
    ),
    Mistake(
        "an unclaimed slot is not counted",
        'for key in string.gmatch(row.keys, "[^,]+") do',
        'for key in string.gmatch("", "[^,]+") do',
        "limits",
        "function Leases.end_lease(",
    ),
    Mistake(
        "a cool-down stops nothing",
        "cooled and tonumber(cooled) - rules.logical or 0",
        "0",
        "limits",
        seed=4,
    ),
    Mistake(
        "a cool-down is deleted before it ends",
        'Keys.COOL_DOWNS, "-inf", logical, "LIMIT"',
        'Keys.COOL_DOWNS, "-inf", logical + 300, "LIMIT"',
        "limits",
    ),
    Mistake(
        "a pause of a tenant stops nothing",
        "if Config.paused_ms(ctx, key, rules) > 0 then return 0 end",
        "",
        "limits",
        seed=11,
    ),
    Mistake(
        "an override changes nothing",
        'if other.concurrency ~= "-" then limit.concurrency =',
        "if false then limit.concurrency =",
        "limits",
        seed=1,
    ),
    Mistake(
        "reschedule wins over drop",
        'says == "d" and action ~= "d"',
        'says == "d" and not action',
        "limits",
        seed=1,
    ),
    Mistake(
        "a free slot of a limit wakes nobody",
        "if Wake.check_waiters(ctx, keys[index], rules) then left = left - 1 end",
        "",
        "limits",
    ),
    Mistake(
        "a free slot of a tenant wakes nobody",
        '== "tenant:" then Tenants.unblock(ctx, keys[index], rules) end',
        '== "tenant:" then end',
        "limits",
        seed=2,
    ),
    Mistake(
        "the limit of a whole queue is not checked",
        "local rejected = row and Limits.check(ctx, row.spec, rules)",
        "local rejected = nil",
        "limits",
    ),
    Mistake(
        "a process takes more than its share",
        "if room then rounds.rooms[queue] = room - 1 end",
        "",
        "shares",
        seed=2,
    ),
    Mistake(
        "older numbers of a key win",
        'return own ~= "" and (is_new or known == "") and own or known',
        'return known == "" and own or known',
        "limits",
        seed=1,
    ),
    # Rates.
    Mistake(
        "a rate lets one more start",
        "if count < starts then return 0 end",
        "if count <= starts then return 0 end",
        "rates",
        seed=5,
    ),
    Mistake(
        "a window is too short",
        "+ period_ms + 1 - logical)",
        "+ period_ms - 100 - logical)",
        "rates",
        seed=10,
    ),
    Mistake(
        "a window is too long",
        "+ period_ms + 1 - logical)",
        "+ period_ms + 100 - logical)",
        "rates",
        seed=3,
    ),
    Mistake(
        "a throttle has no spacing",
        "(window[1] and ahead + 1 or ahead) * interval",
        "(window[1] and ahead or ahead) * interval",
        "rates",
    ),
    Mistake(
        "the start of a body that never began counts",
        "for index = 1, #limits do Rates.give_start_back(ctx, limits[index], at) end",
        "",
        "rates",
        seed=1,
    ),
    # Leases.
    Mistake(
        "the clock follows a jump",
        "if step > longest then step = longest end",
        "",
        "leases",
        seed=4,
    ),
    Mistake(
        "a renewal keeps nothing",
        'redis.call("ZADD", ctx.prefix .. Keys.ENDS, ends_at, lease)',
        "",
        "leases",
        'register("renew"',
        seed=1,
    ),
    Mistake(
        "an acknowledged task runs again",
        'if row.state == "acked" then',
        "if false then",
        "leases",
        "function Settle.expire_one(",
        seed=1,
    ),
    Mistake(
        "a death is not counted",
        "task.deaths = task.deaths + 1",
        "",
        "leases",
        "function Settle.after_death(",
        seed=6,
    ),
    Mistake(
        "a claim sent again takes more tasks",
        "if last_number ~= number then return nil end",
        "if true then return nil end",
        "leases",
        seed=4,
    ),
    Mistake(
        "a late end leaves its task waiting",
        'if tag and (verdict == "done" or verdict == "acked") and Settle.withdraw(ctx, tag) then',
        "if false then",
        "leases",
        seed=1,
    ),
    Mistake(
        "a worker claims before it registers its leases",
        'if known_epoch ~= "" and known_epoch ~= epoch_text then',
        "if false then",
        "leases",
    ),
    Mistake(
        "a task that has started expires",
        "if expires and not rules.promotes then",
        "if false then",
        "leases",
    ),
    # Parked tasks and their promotions.
    Mistake(
        "a start takes what is reserved",
        "if not rules.parked then return 0 end",
        "if true then return 0 end",
        "gate",
        seed=1,
    ),
    Mistake(
        "a promotion reserves nothing",
        'redis.call("ZADD", reserved, rules.ends_at, lease)',
        "",
        "gate",
        seed=1,
    ),
    Mistake(
        "a promotion that ended reserves a start",
        'redis.call("ZREM", ctx.prefix .. Keys.RESERVED .. key, lease)',
        "",
        "gate",
    ),
    Mistake(
        "a promotion takes the place of a start in a window",
        "if rules.promotes then",
        "if false then",
        "gate",
        "function Leases.take_limits(",
    ),
    Mistake(
        "a promotion is far too early",
        "math.min(EARLY_MS, 2 * interval)",
        "math.min(500, 2 * interval)",
        "gate",
    ),
    Mistake(
        "a newcomer overtakes parked tasks",
        "local behind = Promotions.before(ctx, broker, key, each_limit)",
        "local behind = nil",
        "gate",
    ),
    Mistake(
        "a newcomer overtakes tasks that were parked since the last claim",
        "local rejected = Limits.check(ctx, task.limits, rules)",
        "local rejected = nil",
        "gate",
        'register("park"',
    ),
    Mistake(
        "a newcomer waits behind tasks of another broker",
        "local queue = Promotions.queue_of(broker)",
        'local queue = Promotions.queue_of("amqp")',
        "gate",
        "function Promotions.before(",
    ),
    Mistake(
        "a promotion that was lost stays lost",
        'Promotions.settle(ctx, rules, lease, "head", row, tag)',
        'Promotions.settle(ctx, rules, lease, "done", row, tag)',
        "gate",
        seed=1,
    ),
    Mistake(
        "a promotion that ended keeps its slots",
        "Leases.end_lease(ctx, lease, tag, row, rules)",
        'redis.call("HDEL", ctx.prefix .. Keys.RUNNING, tag)',
        "gate",
        "function Promotions.settle(",
    ),
    Mistake(
        "a promotion that ended goes behind its lane",
        "task.attempt = tonumber(row.attempt)",
        "task.attempt = tonumber(row.attempt) task.seq = Tasks.next_seq(ctx)",
        "gate",
        "function Promotions.settle(",
        seed=9,
    ),
    Mistake(
        "a task that could not be published goes behind its lane",
        "if not Promotions.is_parked(queue) then task.seq",
        "if true then task.seq",
        "gate",
        seed=9,
    ),
    Mistake(
        "a task that is parked again goes behind its lane",
        "seq = memory.seq or",
        "seq =",
        "gate",
        seed=33,
    ),
    Mistake(
        "a task that could not be published pauses for a whole lease",
        "local FIRST_PAUSE = 1 / 16",
        "local FIRST_PAUSE = 1",
        "gate",
    ),
    Mistake(
        "a failed publication is not counted",
        "task.deaths = task.deaths + 1",
        "",
        "gate",
        "function Promotions.settle(",
        seed=1,
    ),
    Mistake(
        "a broker may reject a task for ever",
        'elseif verdict == "rejected" and',
        'elseif verdict == "rejected" and false and',
        "gate",
        seed=45,
    ),
    Mistake(
        "the record of a task stays though its broker has it",
        "if task then Tasks.forget(ctx, task) end",
        "",
        "gate",
    ),
    Mistake(
        "a copy on its way holds no slot",
        "Tasks.write_running(ctx, tag, row)",
        "Leases.end_lease(ctx, lease, tag, row, rules)",
        "gate",
        "function Promotions.settle(",
    ),
    Mistake(
        "a late report deletes a task that waits again",
        'if verdict == "begun" or verdict == "taken" or',
        'if verdict == "sent" and tag then Settle.withdraw(ctx, tag) end'
        ' if verdict == "begun" or verdict == "taken" or',
        "gate",
    ),
    Mistake(
        "a task that was revoked on its way waits again",
        'if verdict == "done" then',
        "if false then",
        "gate",
        "function Promotions.settle(",
    ),
    Mistake(
        "a copy holds its slots twice",
        "Leases.end_lease(ctx, serial, tag, row, rules)",
        "",
        "gate",
    ),
    Mistake(
        "the record of a task stays though its copy has come",
        "Tasks.forget(ctx, task)",
        "",
        "gate",
        "function Promotions.arrive(",
        seed=1,
    ),
    Mistake(
        "a copy starts though its task is parked",
        '"current", serial, "next", serial, "seq", seq,',
        '"seq", seq,',
        "gate",
    ),
    Mistake(
        "a copy starts though its task has ended",
        'redis.call("HSET", copy, "current", "-", "next", "-")',
        "",
        "gate",
        seed=30,
    ),
    Mistake(
        "two promotions have one name",
        "attempt = memory.attempts,",
        "attempt = 0,",
        "gate",
    ),
    Mistake(
        "a parked task does not expire",
        'redis.call("ZADD", ctx.prefix .. Keys.EXPIRES .. queue, expires_ms, tag)',
        "",
        "gate",
        'register("park"',
    ),
    Mistake(
        "a task that was promoted does not expire any more",
        "if expires and not rules.promotes then",
        "if expires then",
        "gate",
        seed=19,
    ),
    Mistake(
        "a promotion is counted as a start",
        "if not rules.promotes then Stats.note_start(",
        "if true then Stats.note_start(",
        "gate",
    ),
    Mistake(
        "a promoter counts the rejections of a limit again",
        "if rules.promotes then return end",
        "",
        "gate",
        "function Blocked.block_by_limit(",
    ),
    Mistake(
        "a promoter counts the rejections of a tier again",
        "if rules.promotes then return end",
        "",
        "gate",
        "function Events.report_blocked(",
    ),
    Mistake(
        "the event of a parked task names the queue of its broker",
        "Tasks.shown_queue(task)",
        "task.queue",
        "gate",
        "function Events.write_event_of(",
    ),
    # Gates.
    Mistake(
        "two copies of a message start",
        "if admitted then return admitted ~= serial, memory end",
        "if admitted then return false, memory end",
        "gate",
    ),
    Mistake(
        "a replaced copy starts",
        "return current and current ~= serial and following ~= serial, memory",
        "return false, memory",
        "gate",
    ),
    Mistake(
        "a gate counts no start",
        "Rates.count_start(ctx, limits[index], rules.logical)",
        "",
        "gate",
    ),
    Mistake(
        "a lease of a gate is not counted",
        "Leases.begin_lease(ctx, key, lease, rules) end",
        "end",
        "gate",
        "function Leases.hold",
    ),
    Mistake(
        "a start at a gate ends no lease",
        "Leases.expire(ctx, of_worker, Leases.ENDED_AT_MOST)",
        "",
        "gate",
    ),
    Mistake(
        "a renewal of a gate keeps nothing",
        'redis.call("ZADD", ctx.prefix .. Keys.ENDS, ends_at, lease)',
        "",
        "gate",
        'register("renew"',
    ),
    Mistake(
        "a rejected task is reported at every claim",
        'return task and task.blocked == "" and task or nil',
        "return task",
        "limits",
        "function Events.unreported_of(",
    ),
    Mistake(
        "a start after a rejection is not reported",
        'elseif string.find(task.blocked, "|", 1, true) then',
        "elseif false then",
        "limits",
    ),
    Mistake(
        "the report of a start names the strategy as the key",
        '"key", key, "strategy", strategy)',
        '"key", strategy, "strategy", key)',
        "limits",
        "function Events.emit_released(",
    ),
    Mistake(
        "a rejection by a rate is reported as one by a throttle",
        "strategy = why, limit = number",
        'strategy = "throttle", limit = number',
        "rates",
    ),
    Mistake(
        "the event of a dropped task names its tenant",
        '"key", rejected.by)',
        '"key", key)',
        "limits",
    ),
    Mistake(
        "the end of a lease is reported without its state",
        '"owner", row.owner, "state", row.state)',
        '"owner", row.owner, "state", "claimed")',
        "leases",
    ),
    Mistake(
        "a minute counts a start twice",
        "met.count[field] = (met.count[field] or 0) + 1",
        "met.count[field] = (met.count[field] or 0) + 2",
        "order",
    ),
    Mistake(
        "a minute counts a longer wait",
        '"alone:" or "behind_own:") .. bits',
        '"alone:" or "behind_own:") .. bits + 1',
        "order",
    ),
    Mistake(
        "a minute counts a task behind its own tenant as quiet",
        'string.format(waiting and "%d+" or "%d", since)',
        'string.format("%d", since)',
        "order",
    ),
    Mistake(
        "a reported rejection is not counted",
        "Stats.count_rejection(ctx, closed.strategy, closed.key)",
        "",
        "limits",
        "function Blocked.block_by_limit(",
    ),
    Mistake(
        "a rejection is counted for a limit that is open",
        "Stats.note_start(rules, task, found.verdict.tier, queue)",
        "Stats.note_start(rules, task, found.verdict.tier, queue) "
        'Stats.count_rejection(ctx, "concurrency", "none")',
        "limits",
    ),
    Mistake(
        "a rejected copy is published again though another copy has started",
        "if kept[2] or (kept[1] and kept[1] ~= serial) then return 0 end",
        "if kept[1] and kept[1] ~= serial then return 0 end",
        "gate",
        seed=3,
    ),
    Mistake(
        "a copy that is published again is not known",
        'if kept[1] then redis.call("HSET", copy, "next", next_serial) end',
        "",
        "gate",
        seed=7,
    ),
    Mistake(
        "a gate reports every rejection of a task",
        'if job and memory.reported == "" then',
        "if job then",
        "gate",
        "local function acquire(",
    ),
    Mistake(
        "a gate does not report a start after a rejection",
        "Events.emit_released(ctx, job, memory.reported)",
        "",
        "gate",
    ),
    Mistake(
        "a gate does not report a dropped task",
        'if job then Events.write_event_of(ctx, "rate_limit.dropped"',
        'if false then Events.write_event_of(ctx, "rate_limit.dropped"',
        "gate",
    ),
)


def library_with(mistake: Mistake, budget: Any) -> Library:
    """Return the library of a budget with a mistake in it."""
    made = library_of(budget)
    begin = made.code.index(mistake.after)
    found = made.code.count(mistake.old) if not mistake.after else 1
    assert found == 1, f"expected one line with {mistake.old!r}, got: {found}"
    at = made.code.index(mistake.old, begin)
    code = made.code[:at] + mistake.new + made.code[at + len(mistake.old) :]
    name = f"cf_mistake{hashlib.sha256(code.encode()).hexdigest()[:12]}"
    return Library(name, code.replace(made.name, name))
