--[[
  ends: what became of a claimed task, told with its lease and its lane as "keys rank queue". Whoever told
  all of them lets go on what waited for them (open_freed).

  Here is what most are told; settle.lua has the others, and the codes that both return.
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
  again: attempts that end otherwise than well: their tasks wait again, or are dead letters.

  Twice is harmless, and so is the end of a lease that has ended: its task waits again. Where its
  attempt reports an end all the same and nobody has claimed it since, it is taken out of its lane: it
  must not run twice.

  Returns a code.
    1 SETTLED   2 WITHDRAWN   0 LATE
]]

-- The queue of its service to which tasks of a queue may have been moved (move.lua).
function Settle.other_queue(queue)
  local service, class = string.match(queue, "^(.+)_(%l+)$")
  if class == "priority" then return service .. "_default" end
  if class == "default" then return service .. "_priority" end
end

-- Takes a task that came back out of its lane: returns whether it waited there.
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

-- A task becomes a dead letter; `why` is the state of its obituary.
function Settle.bury(ctx, rules, why, owner, queue, task, message)
  local record = Tasks.write_record(task, message)
  redis.call("RPUSH", ctx.prefix .. "dead:" .. queue, record)
  redis.call("HINCRBY", ctx.prefix .. "counts", "dead_lettered", 1)
  Events.write_event_of(ctx, "fairness.dead_lettered", queue, task, message,
    "reason", why, "deaths", task.deaths)
  Settle.leave_obituary(ctx, rules, Tasks.write_running(owner, why, queue, record))
end

-- The process of a body that had begun is gone: its task waits again, or is a dead letter.
function Settle.after_death(ctx, rules, owner, queue, task, message)
  task.deaths = task.deaths + 1
  if rules.max_deliveries == 0 or task.deaths < rules.max_deliveries then
    Lanes.enqueue_back(ctx, queue, task, message)
  else
    Settle.bury(ctx, rules, "dead", owner, queue, task, message)
  end
end

-- Of a row of `running` that ends: owner, state, queue, its task as it waits again, the message, and the
-- keys of which it held slots.
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
    Settle.leave_obituary(ctx, rules, Tasks.write_running(owner, state, queue, record))
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
  -- A lease that was entered again after Redis had lost its memory is counted, and nothing else.
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

-- An attempt has ended, but for one that is done.
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
  Obituaries: ends that nobody was there to write a result for.
]]

-- A task ended for good and nobody is there to write its result: the next worker that asks does.
function Settle.leave_obituary(ctx, rules, row)
  redis.call("ZADD", ctx.prefix .. "obituaries", rules.logical, row)
end
