--[[
  ends: the outcome of a claimed task, received with its lease and its lane as "keys rank queue".

  A caller settles all its ends first. Then it calls open_freed once for the tasks that waited for them.

  This function settles the common outcomes. `end_otherwise` and `settle_late` settle the others, and all return
  the codes below.
]]

function Settle.settle(ctx, rules, lease, verdict, lane_text)
  local row = redis.call("HGET", ctx.prefix .. "running", lease)
  local is_unbegun = string.sub(verdict, -1) == "-"
  if is_unbegun then
    verdict = string.sub(verdict, 1, -2)
    if row and rules.limited then Rates.give_starts_back(ctx, row, rules) end
  end
  if not row then return Settle.settle_late(ctx, rules, lease, verdict, lane_text) end
  if verdict == "done" then
    if rules.watched then Events.tell_ended(ctx, row, verdict, rules) end
    local tag, _, keys, kind, since = Tasks.charged_by(row)
    if not is_unbegun then Start.note_took(rules, kind, since) end
    redis.call("SREM", ctx.prefix .. "known", tag)
    Leases.end_lease(ctx, lease, keys, rules)
    Leases.freed(keys, rules)
    return 1
  end
  local owner, state, queue, record, since = Tasks.read_running(row)
  if verdict == "begun" or verdict == "acked" then
    if state == "acked" then return 1 end
    redis.call("HSET", ctx.prefix .. "running", lease, Tasks.write_running(owner, verdict, queue, record, since))
    return 1
  end
  return Settle.end_otherwise(ctx, rules, lease, verdict, row)
end

--[[
  again: attempts that do not end well. Their tasks wait again, or become dead letters.

  A second report of the same end changes nothing. If a lease has expired, its task waits again, and a later
  report of its end is harmless too. If that attempt still reports its end and no worker has claimed the task
  since, the task is removed from its lane. The task must not run twice.

  Returns a code.
    1 SETTLED   2 WITHDRAWN   0 LATE
]]

-- Returns the queue of the same service to which move.lua may have moved tasks of a queue.
function Settle.other_queue(queue)
  local service, class = string.match(queue, "^(.+)_(%l+)$")
  if class == "priority" then return service .. "_default" end
  if class == "default" then return service .. "_priority" end
end

-- Removes a task that came back from its lane. Returns whether it waited there.
function Settle.withdraw(ctx, queue, key, rank, tag)
  local record = redis.call("HGET", ctx.prefix .. "returned", tag)
  if not record then return false end
  local task = Tasks.read_record(record)
  if task.key ~= key or task.rank ~= rank then return false end
  local other = Settle.other_queue(queue)
  local at = Lanes.remove_back(ctx, queue, task) and queue
    or other and Lanes.remove_back(ctx, other, task) and other
  if not at then return false end
  redis.call("ZREM", ctx.prefix .. "expires:" .. at, tag)
  redis.call("SREM", ctx.prefix .. "known", tag)
  return true
end

-- A task becomes a dead letter. `why` is the state of its row in `outcomes`.
function Settle.bury(ctx, rules, why, owner, queue, task, message)
  local record = Tasks.write_record(task, message)
  redis.call("RPUSH", ctx.prefix .. "dead:" .. queue, record)
  redis.call("HINCRBY", ctx.prefix .. "counts", "dead_lettered", 1)
  Events.write_event_of(ctx, "fairness.dead_lettered", queue, task, message,
    "reason", why, "deaths", task.deaths)
  Settle.leave_outcome(ctx, rules, Tasks.write_running(owner, why, queue, record))
end

-- The process of a body that had begun is gone. Its task waits again, or it becomes a dead letter.
function Settle.after_death(ctx, rules, owner, queue, task, message)
  task.deaths = task.deaths + 1
  if rules.max_deliveries == 0 or task.deaths < rules.max_deliveries then
    Lanes.enqueue_back(ctx, queue, task, message)
  else
    Settle.bury(ctx, rules, "dead", owner, queue, task, message)
  end
end

-- Reads a row of `running` that ends. Returns owner, state and queue, the task as it waits again, the message,
-- and the keys of which it held slots.
function Settle.read_ended(row)
  local owner, state, queue, record = Tasks.read_running(row)
  local task, message = Tasks.read_record(record)
  local keys = Tasks.keys_of(task.key, task.limits)
  task.limits = Tasks.without_whole(task.limits)
  return owner, state, queue, task, message, keys
end

function Settle.expire_one(ctx, rules, lease, row)
  if rules.watched then Events.tell_ended(ctx, row, "expired", rules) end
  local owner, state, queue, task, message, keys = Settle.read_ended(row)
  Leases.end_lease(ctx, lease, keys, rules)
  redis.call("HINCRBY", ctx.prefix .. "counts", "expired", 1)
  Events.write_event_of(ctx, "fairness.lease_expired", queue, task, message,
    "owner", owner, "state", state)
  if state == "acked" then
    redis.call("SREM", ctx.prefix .. "known", task.tag)
    redis.call("HINCRBY", ctx.prefix .. "counts", "abandoned", 1)
    Events.write_event_of(ctx, "fairness.abandoned", queue, task, message, "owner", owner)
    local record = Tasks.write_record(task, message)
    Settle.leave_outcome(ctx, rules, Tasks.write_running(owner, state, queue, record))
  elseif state == "begun" then
    Settle.after_death(ctx, rules, owner, queue, task, message)
  else
    Lanes.enqueue_back(ctx, queue, task, message)
  end
  Leases.freed(keys, rules)
end

function Settle.settle_late(ctx, rules, lease, verdict, lane_text)
  local keys, rank, queue = string.match(lane_text, "^(%S+) (%d) (.*)$")
  if verdict == "begun" or not keys then return 0 end
  local key = string.match(keys, "^[^,]+")
  -- A lease that was entered again after Redis lost its memory is only counted. It has no row.
  if verdict ~= "acked" then
    local gone = 0
    for each in string.gmatch(keys, "[^,]+") do
      local leases = ctx.prefix .. "leases:" .. each
      gone = gone + redis.call("ZREM", leases, lease)
      if redis.call("ZCOUNT", leases, "-inf", "(+inf") == 0 then
        redis.call("ZREM", ctx.prefix .. "ends", "  " .. each)
      end
    end
    if gone > 0 then Leases.freed(keys, rules) end
  end
  if verdict ~= "done" and verdict ~= "acked" then return 0 end
  local tag = string.match(lease, "^(.+)%.%d+%.%w+$")
  return tag and Settle.withdraw(ctx, queue, key, rank, tag) and 2 or 0
end

-- An attempt has ended in another way than done.
function Settle.end_otherwise(ctx, rules, lease, verdict, row)
  if rules.watched then Events.tell_ended(ctx, row, verdict, rules) end
  local owner, state, queue, task, message, keys = Settle.read_ended(row)
  Leases.end_lease(ctx, lease, keys, rules)
  if state == "acked" then
    redis.call("SREM", ctx.prefix .. "known", task.tag)
  elseif verdict == "tail" then
    task.seq = redis.call("INCR", ctx.prefix .. "sequence")
    Lanes.enqueue(ctx, queue, task, message, false)
  elseif verdict == "died" then
    Settle.after_death(ctx, rules, owner, queue, task, message)
  elseif verdict == "unreadable" then
    Settle.bury(ctx, rules, verdict, owner, queue, task, message)
  else
    Lanes.enqueue_back(ctx, queue, task, message)
  end
  Leases.freed(keys, rules)
  return 1
end

--[[
  `outcomes`: ends for which no process was left to write a result.
]]

-- A task ended for good, and no process is left to write its result. The next worker that calls
-- `functions/next_outcome.lua` writes it.
function Settle.leave_outcome(ctx, rules, row)
  redis.call("ZADD", ctx.prefix .. "outcomes", rules.logical, row)
end
