--[[
  events: each is appended to a stream by the function that caused it. The stream gives an event its id and time.

  Events of tasks can be a flood. So acts of people and errors also go to the stream `kept_events`, with the same ids.
]]

-- Each stream keeps this many events, and the rest of one block of the stream.
local EVENTS_KEPT = 10000

-- These types go to `kept_events` too. A space follows each type.
local KEPT = "fairness.paused fairness.resumed fairness.override_set fairness.override_ended " ..
  "fairness.queue_limit_set fairness.queue_limit_cleared fairness.tier_set fairness.tier_cleared " ..
  "fairness.tiers_published fairness.cool_down_cleared fairness.cancelled fairness.purged fairness.requeued " ..
  "rate_limit.dynamic_adjusted fairness.lease_expired fairness.abandoned " ..
  "fairness.dead_lettered fairness.memory_lost fairness.unpublished "

function Events.write_event(ctx, what, ...)
  local id = redis.call("XADD", ctx.prefix .. Keys.EVENTS, "MAXLEN", "~", EVENTS_KEPT, "*", "type", what, ...)
  if string.find(KEPT, what .. " ", 1, true) then
    redis.call("XADD", ctx.prefix .. Keys.KEPT_EVENTS, "MAXLEN", "~", EVENTS_KEPT, id, "type", what, ...)
  end
end

-- Returns the id, the name and the queue from "ID NAME QUEUE", or nil from "".
function Events.read_job(text)
  local id, name, queue = string.match(text, "^(%S*) (%S*) (.*)$")
  return id and {id = id, name = name, queue = queue}
end

-- `task` has an id, a name and a queue. A message of another protocol has neither id nor name in its headers, and
-- then the tag stands for the id.
function Events.write_event_of(ctx, what, task, ...)
  Events.write_event(ctx, what, "job_id", Events.id_of(task), "job_type", task.name,
    "queue", Tasks.shown_queue(task), ...)
end

function Events.id_of(task)
  return task.id ~= "" and task.id or task.tag or ""
end

--[[
  The events of a task that limits reject.

  One event reports which limit rejected the task. A second event reports that the task starts. Each of them is
  written at most once. The task keeps the state of this as `STRATEGY|KEY`. The state "" is that nothing was
  reported, and "-" that the start was reported too.
]]

-- Returns what rejects a task whose tenant is at its tier's limit. An unlimited tier can reject a task too, if
-- other tasks have waited longer. Its event then has the limit 0.
-- `why` and `number` are the reason and the number if its rate or its throttle rejects the task, otherwise nil.
function Events.at_tier(key, limit, held, why, number)
  if why then return {key = key, strategy = why, limit = number, current = number} end
  local strategy = limit == 0 and "paused" or "concurrency"
  return {key = key, strategy = strategy, limit = math.max(0, limit), current = held}
end

-- `closed` has strategy, key, limit and current. Returns the state that the task keeps.
function Events.emit_exceeded(ctx, task, closed)
  Events.write_event_of(ctx, "rate_limit.exceeded", task, "key", closed.key,
    "strategy", closed.strategy, "limit", closed.limit, "current", closed.current)
  return closed.strategy .. "|" .. closed.key
end

-- Reports the start of a task whose rejection was reported. `reported` is the state that the task keeps.
function Events.emit_released(ctx, task, reported)
  local strategy, key = string.match(reported, "^([^|]*)|(.*)$")
  Events.write_event_of(ctx, "rate_limit.released", task, "key", key, "strategy", strategy)
end

-- A gate lets a task start. `memory` is what copies.lua has stored for its message.
function Events.emit_admitted(ctx, job, memory)
  if not job or memory.reported == "" or memory.reported == "-" then return end
  Events.emit_released(ctx, job, memory.reported)
  memory.reported = "-"
end

--[[
  traced: events of each task in the stream `trace`, while somebody watches tasks (trace.lua).
]]

-- The stream keeps this many events, and the rest of one block.
local WATCHED_KEPT = 100000

function Events.append_trace(ctx, what, ...)
  redis.call("XADD", ctx.prefix .. Keys.TRACE, "MAXLEN", "~", WATCHED_KEPT, "*", "type", what, ...)
end

-- `task` is as for write_event_of. `key` is the one to which it is charged.
function Events.emit_trace(ctx, what, task, key, ...)
  Events.append_trace(ctx, what, "job_id", Events.id_of(task), "job_type", task.name, "queue", task.queue, "key", key, ...)
end

-- `eta_ms` is the server time from which the task may start.
function Events.emit_put(ctx, task, eta_ms)
  Events.emit_trace(ctx, "task.put", task, task.key, "tier", task.tier,
    "cost", task.cost, "rank", task.rank, "eta", string.format("%.0f", eta_ms))
end

function Events.seconds_since(ms, now)
  return ms and string.format("%.3f", math.max(0, now - tonumber(ms)) / 1000) or ""
end

function Events.emit_started(ctx, task, rules)
  Events.emit_trace(ctx, "task.started", task, task.key, "attempt", task.attempt, "owner", rules.owner,
    "waited_seconds", Events.seconds_since(string.match(task.put, "%d+"), rules.now))
end

-- `row` is the row of `running` whose lease ends.
function Events.emit_ended(ctx, task, row, outcome, rules)
  Events.emit_trace(ctx, "task.ended", task, task.key, "attempt", row.attempt, "owner", row.owner,
    "outcome", outcome, "ran_seconds", Events.seconds_since(string.match(row.since, "^@(%d+)"), rules.logical))
end

-- Returns the key to which a task is charged. `key` is that of its tenant's tier, or "" without one.
function Events.tenant_of(key)
  return key ~= "" and key or "_system"
end

-- A gate starts a task of this key, whose lease is `lease`. `since` is when it was parked, or nil if it was not.
function Events.emit_gate_started(ctx, lease, job, key, since, now)
  Events.emit_trace(ctx, "task.started", job, Events.tenant_of(key), "attempt", "",
    "owner", Leases.worker_of(lease) or "", "waited_seconds", Events.seconds_since(since, now))
end

-- `row` is that of a lease whose task is not here. A lease that was entered again does not name its task.
function Events.emit_gate_ended(ctx, row, outcome, logical)
  if row.id == "" then return end
  Events.emit_trace(ctx, "task.ended", row, string.match(row.keys, "^tenant:[^,]*") or Events.tenant_of(""), "attempt", "",
    "owner", row.owner ~= "-" and row.owner or "", "outcome", outcome,
    "ran_seconds", Events.seconds_since(string.match(row.since, "^@(%d+)"), logical))
end

--[[
  blocking: a limit rejects the first task of a lane. The head of a task keeps the state of its events.
]]

-- Returns the first task of a lane if no event has reported yet that a limit rejects it.
function Events.unreported_of(ctx, queue, key, lane)
  local tag = Lanes.first_of(ctx, queue, key, lane)
  local task = tag and Tasks.read(ctx, tag)
  return task and task.blocked == "" and task or nil
end

-- A tenant is at its tier's limit. `lane` is the first of its lanes.
function Events.report_blocked(ctx, queue, key, lane, verdict, rules)
  if rules.promotes then return end
  Stats.count_rejection(ctx, verdict.closes or verdict.paused and "paused" or "concurrency", key)
  local task = Events.unreported_of(ctx, queue, key, lane)
  if not task then return end
  local held = verdict.held or Slots.held(ctx, key)
  local at = Events.at_tier(key, verdict.most, held, verdict.closes, verdict.number)
  task.blocked = Events.emit_exceeded(ctx, task, at)
  Tasks.write(ctx, task)
end
