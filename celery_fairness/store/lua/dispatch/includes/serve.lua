--[[
  serve: start the first task of a tenant that has room, or of one lane, and charge it.

  `rules` is as for judge, and owner, ends_at (of a lease that begins now), and virtual: by queue, the
  ring's time as far as this claim has read it.
]]
--- @include "leases"
--- @include "taking"

-- What one task charges. A charge too small to move a tenant would let it run for ever, one without
-- an end would stop it for ever.
local LEAST_CHARGE, LARGEST_CHARGE = 1e-6, 1e6

local function charge_of(cost, weight)
  local charge = cost / weight
  -- Neither comparison holds for what is no number.
  if not (charge > LEAST_CHARGE) then return LEAST_CHARGE end
  return math.min(charge, LARGEST_CHARGE)
end

local function lease_task(prefix, queue, key, record, rules, weight)
  local task, message, next_record = start_record(record, key)
  local lease = task.tag .. "." .. task.attempt
  if rules.queued then next_record = limited().add_whole(prefix, queue, task, next_record, rules) end
  if task.limits ~= "" then
    limited().take_limits(prefix, task, lease, rules, charge_of(task.cost, weight))
  end
  if string.find(task.blocked, "|", 1, true) then
    rare().tell_released(prefix, queue, task, message)
  end
  redis.call("ZADD", prefix .. "leases:" .. key, "+inf", lease)
  redis.call("ZADD", prefix .. "ends", rules.ends_at, lease)
  redis.call("HSET", prefix .. "running", lease,
    write_running(rules.owner, "claimed", queue, next_record))
  return lease, task, message
end

-- Returns nothing where somebody has deleted the lane: the others of the queue go on.
-- A tenant whose limit is full now stays in the ring: mostly a task has ended before it is its turn.
-- `found` says key, part, its group where it is parked, where it waits (name), and its start.
local function serve(prefix, queue, found, weight, rules)
  local key, group, start, waiting = found.key, found.group, found.start, found.verdict.waiting
  local record, is_last = pop_part(prefix, queue, key, found.part, group, found.others, waiting)
  if not record then
    leave_ring(prefix, queue, key)
    return nil
  end
  local lease, task, message = lease_task(prefix, queue, key, record, rules, weight)
  if rules.expiring then redis.call("ZREM", prefix .. "expires:" .. queue, task.tag) end
  local ring_at = rules.virtual[queue] or virtual_time(prefix, queue)
  if start > ring_at then
    redis.call("HSET", prefix .. "virtual", queue, start)
  else
    -- Who was passed over and lags behind the ring has no credit for it.
    start = ring_at
  end
  rules.virtual[queue] = start
  local finish = start + charge_of(task.cost, weight)
  if group and redis.call("ZSCORE", prefix .. "parked:" .. key .. " " .. queue, found.lane) then
    limited().served(prefix, queue, group, found.name, key)
  end
  if task_left(prefix, queue, key, finish, waiting) > 0 then
    local ring, full = prefix .. "ring:" .. queue, prefix .. "full:" .. queue
    if group and not redis.call("ZSCORE", ring, key) then ring = full end
    redis.call("ZADD", ring, finish, key)
    if is_last and not group then leave_ring(prefix, queue, key) end
  end
  return lease, task, message
end
