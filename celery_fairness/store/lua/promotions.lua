--[[
  promotions: tasks that a gate has parked. They wait in the queue `@parked:BROKER`, as other tasks wait in theirs.

  A promoter of that broker claims such a task, and publishes a copy whose serial is the name of the lease. So one
  copy of a task is valid, that of its last claim. The row of the lease has the state "promoted" until the broker
  has the copy. Then it has the state "sent": the record of the task is deleted, and the lease keeps its slots for
  the copy. When the copy comes to a gate, its promotion ends, and the gate's own lease takes the slots in the same
  call.

  A promotion is no start. So it counts no start, and writes no event. `reserved:KEY` has the leases that reserve a
  start of a rate or a throttle of the key, with their ends. If the start takes several units, the lease is followed by
  `*UNITS`. A promotion is never renewed, because a broker that
  does not answer would keep its slots for ever.
]]

-- A task that no broker takes in this many tries has failed.
local TRIES_AT_MOST = 10
-- The first pause of a task that could not be published is this part of a lease. Each further one is twice as long.
local FIRST_PAUSE = 1 / 16

function Promotions.queue_of(broker)
  return "@parked:" .. broker
end

function Promotions.is_parked(queue)
  return string.sub(queue, 1, 8) == "@parked:"
end

function Promotions.is_promotion(row)
  return row.state == "promoted" or row.state == "sent"
end

local function reservation_of(lease, units)
  return units and lease .. "*" .. Rates.int_text(units) or lease
end

-- A promoted task reserves a start of a limit.
function Promotions.reserve(ctx, limit, lease, rules)
  if limit.rate == "" and limit.throttle == "" then return end
  if limit.units then Clock.note_several(ctx) end
  local reserved = ctx.prefix .. Keys.RESERVED .. limit.key
  redis.call("ZREMRANGEBYSCORE", reserved, "-inf", rules.logical)
  redis.call("ZADD", reserved, rules.ends_at, reservation_of(lease, limit.units))
end

-- Returns how many starts of a key are reserved, and how many units they take.
function Promotions.reserved(ctx, key, rules)
  if not rules.parked then return 0, 0 end
  local reserved, after = ctx.prefix .. Keys.RESERVED .. key, "(" .. Rates.int_text(rules.logical)
  if not ctx.several then
    local count = redis.call("ZCOUNT", reserved, after, "+inf")
    return count, count
  end
  local all, units = redis.call("ZRANGEBYSCORE", reserved, after, "+inf"), 0
  for index = 1, #all do units = units + (tonumber(string.match(all[index], "%*(%d+)$")) or 1) end
  return #all, units
end

-- A promotion reserves no start any more. `row` is that of its lease.
function Promotions.release(ctx, lease, row)
  for key in string.gmatch(row.keys, "[^,]+") do
    local amounts = row.amounts and row.amounts[key]
    redis.call("ZREM", ctx.prefix .. Keys.RESERVED .. key, reservation_of(lease, amounts and Numbers.read(amounts).units))
  end
end

-- Records the outcome of a promotion:
-- - sent: the broker has the copy
-- - unsent: it could not be published, so the task waits again after a pause
-- - rejected: as unsent, but after TRIES_AT_MOST tries the task has failed
-- - done: the task ended before it came to a gate
-- - any other: the task waits again, in its place
function Promotions.settle(ctx, rules, lease, verdict, row, tag)
  local task = Tasks.read(ctx, tag)
  if verdict == "sent" then
    row.state = "sent"
    Tasks.write_running(ctx, tag, row)
    if task then Tasks.forget(ctx, task) end
    return 1
  end
  Leases.end_lease(ctx, lease, tag, row, rules)
  if not task then return 1 end
  task.attempt = tonumber(row.attempt)
  if verdict == "done" then
    Tasks.forget(ctx, task)
  elseif verdict == "rejected" and task.deaths + 1 >= TRIES_AT_MOST then
    Events.write_event_of(ctx, "fairness.unpublished", task)
    Settle.leave_outcome(ctx, rules, task, "unpublished", row.owner)
  elseif verdict == "unsent" or verdict == "rejected" then
    local pause_ms = math.min(rules.lease_ms, rules.lease_ms * FIRST_PAUSE * 2 ^ task.deaths)
    task.deaths = task.deaths + 1
    Schedule.wait_until(ctx, task.queue, task, Rates.int_text(rules.now + pause_ms))
  else
    Lanes.enqueue(ctx, task.queue, task, false)
  end
  return 1
end

-- A copy comes to a gate. Its promotion ends, and its record is deleted. Returns the keys of its promotion, or nil if
-- it had none.
function Promotions.arrive(ctx, rules, message, serial)
  local row, tag = Tasks.read_running(ctx, serial)
  local task = Tasks.read(ctx, message)
  if task and Promotions.is_parked(task.queue) and (row and tag == message or Lanes.remove_waiting(ctx, task)) then
    Tasks.forget(ctx, task)
  end
  if not row or tag ~= message or not Promotions.is_promotion(row) then return nil end
  Leases.end_lease(ctx, serial, tag, row, rules)
  return row.keys
end

-- Returns what a newcomer must wait behind: the tier's key or a limit that lets wait, at which other tasks of this
-- broker wait. Returns nil if there is none.
function Promotions.before(ctx, broker, key, limits)
  local queue = Promotions.queue_of(broker)
  if key ~= "" and (redis.call("EXISTS", ctx.prefix .. Keys.READY .. key .. " " .. queue) == 1) then return {key = key} end
  for index = 1, #limits do
    local limit = limits[index]
    if limit.on_limit == "w" and redis.call("EXISTS", ctx.prefix .. Keys.GROUPS_AT .. limit.name .. " " .. queue) == 1 then
      return limit
    end
  end
end
