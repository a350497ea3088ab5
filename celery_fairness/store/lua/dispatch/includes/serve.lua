--[[
  serve: start the first task of a tenant that has room, or of one lane, and charge it.

  `rules` is as for judge, and owner, lease_ms, and virtual: by queue, the ring's time as far as this
  claim has read it.
]]
--- @include "leases"

-- Debts that the ring has passed and one task clears away.
local CLEAR_AT_MOST = 4
-- What one task charges. A charge too small to move a tenant would let it run for ever, one without
-- an end would stop it for ever.
local LEAST_CHARGE, LARGEST_CHARGE = 1e-6, 1e6

local function charge_of(cost, weight)
  local charge = cost / weight
  -- Neither comparison holds for what is no number.
  if not (charge > LEAST_CHARGE) then return LEAST_CHARGE end
  return math.min(charge, LARGEST_CHARGE)
end

local function lease_task(prefix, queue, record, rules)
  local task, message = read_record(record)
  task.attempt = task.attempt + 1
  local lease = task.tag .. "." .. task.attempt
  redis.call("ZADD", prefix .. "leases:" .. task.key, "+inf", lease)
  redis.call("ZADD", prefix .. "ends", rules.logical + rules.lease_ms, lease)
  redis.call("HSET", prefix .. "running", lease,
    write_running(rules.owner, "claimed", queue, write_record(task, message)))
  return lease, task, message
end

-- A tenant whose limit is full now stays in the ring: mostly a task has ended before it is its turn.
local function serve(prefix, queue, key, lane, start, weight, rules)
  local record = pop_first(prefix, queue, key, lane)
  local lease, task, message = lease_task(prefix, queue, record, rules)
  local ring_at = rules.virtual[queue] or virtual_time(prefix, queue)
  if start > ring_at then
    redis.call("HSET", prefix .. "virtual", queue, start)
  else
    -- Who was passed over and lags behind the ring has no credit for it.
    start = ring_at
  end
  rules.virtual[queue] = start
  local finish = start + charge_of(task.cost, weight)
  if task_left(prefix, queue, key, finish) > 0 then
    redis.call("ZADD", prefix .. "ring:" .. queue, finish, key)
  end
  local out = prefix .. "out:" .. queue
  local passed = redis.call("ZRANGEBYSCORE", out, "-inf", start, "LIMIT", 0, CLEAR_AT_MOST)
  if #passed > 0 then redis.call("ZREM", out, unpack(passed)) end
  return lease, task, message
end
