--[[
  settle: the outcome of a task that held a lease.

  A caller settles all its ends first. Then it calls open_freed once for the tasks that waited for them.

  Each function returns one of the codes below.
]]

function Settle.settle(ctx, rules, lease, verdict)
  if verdict == "begun" or verdict == "acked" or verdict == "taken" then
    local noted, tag = Settle.note_begin(ctx, lease, verdict)
    return noted and 1 or Settle.settle_other(ctx, rules, lease, verdict, tag)
  end
  local row, tag = Tasks.read_running(ctx, lease)
  local is_unbegun = string.sub(verdict, -1) == "-"
  if is_unbegun then verdict = string.sub(verdict, 1, -2) end
  if not row then return Settle.settle_other(ctx, rules, lease, verdict, tag) end
  local outcome = verdict
  if Stats.RAN[verdict] then verdict = "done" end
  if Promotions.is_promotion(row) then return Promotions.settle(ctx, rules, lease, verdict, row, tag) end
  -- Most ends are of this kind. To read the head too costs 13 % of a settle.
  if outcome == "done" and row.charge == "" and not is_unbegun and not rules.traced then
    Leases.end_lease(ctx, lease, tag, row, rules)
    Start.note_run_time(ctx, rules, row.name, row.since)
    Stats.note_end(ctx, outcome)
    Tasks.delete(ctx, tag, row.id)
    return 1
  end
  local task = Settle.end_attempt(ctx, rules, {lease = lease, row = row, tag = tag}, outcome, is_unbegun)
  if not task then return 1 end
  if verdict == "done" then
    if not is_unbegun then
      Start.note_run_time(ctx, rules, task.name, row.since)
      Stats.note_end(ctx, outcome, task.queue)
    end
    Tasks.delete(ctx, task.tag, task.id)
  elseif verdict == "tail" then
    -- A worker sends it for an acknowledged message too, if the message of its retry could not be sent.
    task.seq = Tasks.next_seq(ctx)
    if not is_unbegun then Stats.note_end(ctx, "retried", task.queue) end
    Lanes.enqueue(ctx, task.queue, task, false)
  elseif row.state == "acked" then
    -- The process of its body is gone, and sent the begin before its worker had read of it.
    Settle.abandon(ctx, rules, row.owner, task)
  elseif verdict == "died" then
    Settle.after_death(ctx, rules, row.owner, task)
  elseif verdict == "unreadable" then
    Settle.dead_letter(ctx, rules, verdict, row.owner, task)
  else
    Lanes.enqueue(ctx, task.queue, task, false)
  end
  return 1
end

-- Stores that the body of a claimed task begins. Two processes may report it, in any order. Returns false and the tag
-- if the lease is not its own now.
function Settle.note_begin(ctx, lease, verdict)
  local tag, text = Tasks.text_of_running(ctx, lease)
  if not text then return false, tag end
  -- This is a part of the cost of each task, so it changes the text and does not read the row.
  local before, state, after = string.match(text, "^(%S+ %S+ )(%a+)(.*)$")
  if state == "promoted" or state == "sent" then return false, tag end
  local new = verdict == "begun" and "begun" or "acked"
  if state ~= "acked" and state ~= new then redis.call("HSET", ctx.prefix .. Keys.RUNNING, tag, before .. new .. after) end
  return true
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

-- Ends a lease. `held` has the lease, its row and the tag of its task. The caller decides what the task does next.
-- Returns the task with this attempt, or nil if its record is lost.
function Settle.end_attempt(ctx, rules, held, outcome, is_unbegun)
  local row, task = held.row, Tasks.read(ctx, held.tag)
  if task then
    task.attempt = tonumber(row.attempt)
    if is_unbegun and (rules.limited or rules.paced) then Rates.give_starts_back(ctx, task, row, rules) end
    if rules.traced then Events.emit_ended(ctx, task, row, outcome, rules) end
    -- Its start was reported, as its rejection was.
    if task.blocked ~= "" then task.blocked = "-" end
    Start.correct(ctx, task, row, rules)
  else
    Stats.count_lost(ctx)
  end
  Leases.end_lease(ctx, held.lease, held.tag, row, rules)
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
  Stats.note_end(ctx, "failed", task.queue)
  task.deaths = task.deaths + 1
  if rules.max_deliveries == 0 or task.deaths < rules.max_deliveries then
    Lanes.enqueue(ctx, task.queue, task, false)
  else
    Settle.dead_letter(ctx, rules, "dead", owner, task)
  end
end

-- The process of a body whose message was acknowledged is gone. Its task is not run again.
function Settle.abandon(ctx, rules, owner, task)
  Stats.note_end(ctx, "failed", task.queue)
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "abandoned", 1)
  Events.write_event_of(ctx, "fairness.abandoned", task, "owner", owner)
  Settle.leave_outcome(ctx, rules, task, "acked", owner)
end

function Settle.expire_one(ctx, rules, lease, row, tag)
  if Promotions.is_promotion(row) then return Promotions.settle(ctx, rules, lease, "head", row, tag) end
  local task = Settle.end_attempt(ctx, rules, {lease = lease, row = row, tag = tag}, "expired", false)
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
  if tag and (Stats.RAN[verdict] or verdict == "acked") and Settle.withdraw(ctx, tag) then return 2 end
  return held and 1 or 0
end

--[[
  `outcomes` has the tags of the tasks that ended while no process was left to write their result. The score of a tag
  is the logical time from which a worker may write the result. The field `blocked` of the task's head is STATE|OWNER.

  The state is acked, dead, unreadable, unpublished, dropped, cancelled, expired, duplicate or replaced. The owner of a
  dropped task is the key of the limit that dropped it. That of a duplicate or a replaced task is the id of the task that
  has the unique key (unique.lua).
]]

-- The next worker that calls `functions/next_outcome.lua` writes the result. Until then the record of the task stays.
function Settle.leave_outcome(ctx, rules, task, state, owner)
  if Promotions.is_parked(task.queue) then Copies.copy_ended(ctx, task.tag) end
  Unique.give(ctx, task.tag)
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
