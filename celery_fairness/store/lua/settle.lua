--[[
  ends: the outcome of a task that held a lease.

  A caller settles all its ends first. Then it calls open_freed once for the tasks that waited for them.

  Each function returns one of the codes below.
]]

function Settle.settle(ctx, rules, lease, verdict)
  local row, tag = Tasks.read_running(ctx, lease)
  local is_unbegun = string.sub(verdict, -1) == "-"
  if is_unbegun then verdict = string.sub(verdict, 1, -2) end
  if not row then return Settle.settle_other(ctx, rules, lease, verdict, tag) end
  if Promotions.is_promotion(row) then return Promotions.settle(ctx, rules, lease, verdict, row, tag) end
  if verdict == "begun" or verdict == "acked" or verdict == "taken" then
    return Settle.note_begin(ctx, tag, row, verdict)
  end
  if verdict == "done" and row.charge == "" and not is_unbegun and not rules.traced then
    Leases.end_lease(ctx, lease, tag, row, rules)
    Start.note_run_time(rules, row.name, row.since)
    Tasks.delete(ctx, tag, row.id)
    return 1
  end
  local task = Settle.end_attempt(ctx, rules, lease, verdict, row, tag, is_unbegun)
  if not task then return 1 end
  if verdict == "done" then
    if not is_unbegun then Start.note_run_time(rules, task.name, row.since) end
    Tasks.delete(ctx, task.tag, task.id)
  elseif row.state == "acked" then
    -- The process of its body is gone, and sent the begin before its worker had read of it.
    Settle.abandon(ctx, rules, row.owner, task)
  elseif verdict == "tail" then
    task.seq = Tasks.next_seq(ctx)
    Lanes.enqueue(ctx, task.queue, task, false)
  elseif verdict == "died" then
    Settle.after_death(ctx, rules, row.owner, task)
  elseif verdict == "unreadable" then
    Settle.dead_letter(ctx, rules, verdict, row.owner, task)
  else
    Lanes.enqueue(ctx, task.queue, task, false)
  end
  return 1
end

-- Stores that the body of a task begins, whose lease is its own. Two processes may report it, in any order.
function Settle.note_begin(ctx, tag, row, verdict)
  local state = verdict == "begun" and "begun" or "acked"
  if row.state ~= "acked" and row.state ~= state then
    row.state = state
    Tasks.write_running(ctx, tag, row)
  end
  return 1
end

--[[
  again: attempts that do not end well. Their tasks wait again, or become dead letters.

  A second report of the same end changes nothing. If a lease has expired, its task waits again, and a later
  report of its end is harmless too. If that attempt still reports its end and no worker has claimed the task
  since, the task is removed from its queue. The task must not run twice.

  Returns a code.
    1 SETTLED   2 WITHDRAWN   0 LATE
]]

-- The owner of an outcome whose task no worker held.
Settle.NOBODY = "-"

-- Ends a lease. The caller decides what its task does next. Returns the task with this attempt, or nil if
-- somebody has deleted its record.
function Settle.end_attempt(ctx, rules, lease, outcome, row, tag, is_unbegun)
  local task = Tasks.read(ctx, tag)
  if task then
    task.attempt = tonumber(row.attempt)
    if is_unbegun and rules.limited then Rates.give_starts_back(ctx, task, row, rules) end
    if rules.traced then Events.emit_ended(ctx, task, row, outcome, rules) end
    -- Its start was reported, as its rejection was.
    if task.blocked ~= "" then task.blocked = "-" end
    Start.correct(ctx, task, row, rules)
  end
  Leases.end_lease(ctx, lease, tag, row, rules)
  return task
end

-- Removes a task that waits again. Returns whether it waited.
function Settle.withdraw(ctx, tag)
  local task = Tasks.read(ctx, tag)
  if not task or not Lanes.remove_waiting(ctx, task) then return false end
  Tasks.forget(ctx, task)
  return true
end

-- A task becomes a dead letter. `why` is the state of its outcome.
function Settle.dead_letter(ctx, rules, why, owner, task)
  redis.call("ZADD", ctx.prefix .. Keys.DEAD .. task.queue, Tasks.next_seq(ctx), task.tag)
  Queues.note(ctx, task.queue)
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "dead_lettered", 1)
  Events.write_event_of(ctx, "fairness.dead_lettered", task, "reason", why, "deaths", task.deaths)
  Settle.leave_outcome(ctx, rules, task, why, owner)
end

-- The process of a body that had begun is gone. Its task waits again, or it becomes a dead letter.
function Settle.after_death(ctx, rules, owner, task)
  task.deaths = task.deaths + 1
  if rules.max_deliveries == 0 or task.deaths < rules.max_deliveries then
    Lanes.enqueue(ctx, task.queue, task, false)
  else
    Settle.dead_letter(ctx, rules, "dead", owner, task)
  end
end

-- The process of a body whose message was acknowledged is gone. Its task is not run again.
function Settle.abandon(ctx, rules, owner, task)
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "abandoned", 1)
  Events.write_event_of(ctx, "fairness.abandoned", task, "owner", owner)
  Settle.leave_outcome(ctx, rules, task, "acked", owner)
end

function Settle.expire_one(ctx, rules, lease, row, tag)
  if Promotions.is_promotion(row) then return Promotions.settle(ctx, rules, lease, "head", row, tag) end
  local task = Settle.end_attempt(ctx, rules, lease, "expired", row, tag, false)
  if not task then return end
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "expired", 1)
  Events.write_event_of(ctx, "fairness.lease_expired", task, "owner", row.owner, "state", row.state)
  if row.state == "acked" then
    Settle.abandon(ctx, rules, row.owner, task)
  elseif row.state == "begun" then
    Settle.after_death(ctx, rules, row.owner, task)
  else
    Lanes.enqueue(ctx, task.queue, task, false)
  end
end

-- The lease has no claimed task: the task is not here, or the lease has ended. Its task may wait here again.
function Settle.settle_other(ctx, rules, lease, verdict, tag)
  if verdict == "begun" or verdict == "taken" or verdict == "sent" or verdict == "unsent" or verdict == "rejected" then return 0 end
  local held = verdict ~= "acked" and Leases.end_held(ctx, rules, lease, verdict)
  if tag and (verdict == "done" or verdict == "acked") and Settle.withdraw(ctx, tag) then return 2 end
  return held and 1 or 0
end

--[[
  `outcomes` has the tags of the tasks that ended while no process was left to write their result. The score of a tag
  is the logical time from which a worker may write the result. The field `blocked` of the task's head is STATE|OWNER.

  The state is acked, dead, unreadable, unpublished, dropped, cancelled or expired. The owner of a dropped task is
  the key of the limit that dropped it.
]]

-- The next worker that calls `functions/next_outcome.lua` writes the result. Until then the record of the task stays.
function Settle.leave_outcome(ctx, rules, task, state, owner)
  if Promotions.is_parked(task.queue) then Copies.copy_ended(ctx, task.tag) end
  task.blocked = state .. "|" .. owner
  Tasks.write(ctx, task)
  redis.call("ZADD", ctx.prefix .. Keys.OUTCOMES, rules.logical, task.tag)
end

-- Returns the state and the owner of a task whose result is not written yet.
function Settle.outcome_of(task)
  return string.match(task.blocked, "^(%a+)|(.*)$")
end

function Settle.forget_outcome(ctx, tag)
  return redis.call("ZREM", ctx.prefix .. Keys.OUTCOMES, tag) == 1
end
