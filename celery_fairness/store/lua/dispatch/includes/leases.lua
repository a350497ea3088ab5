--[[
  Leases of claimed tasks: `running` holds the task, `ends` the logical time at which the lease ends,
  `leases:KEY` counts it for its tenant's limit.

  A lease is named TAG.ATTEMPT, so that it belongs to one attempt and says whose.
]]
--- @include "judge"

-- Takes the lease out of everything that knows it; the task stays known unless it is done.
local function end_lease(prefix, lease, key)
  redis.call("HDEL", prefix .. "running", lease)
  redis.call("ZREM", prefix .. "ends", lease)
  redis.call("ZREM", prefix .. "leases:" .. key, lease)
end

-- A task ended for good and nobody is there to write its result: the next worker that asks does.
local function leave_obituary(prefix, rules, row)
  redis.call("ZADD", prefix .. "obituaries", rules.logical, row)
end

-- A task becomes a dead letter; `why` is the state of its obituary.
local function bury(prefix, rules, why, owner, queue, task, message)
  local record = write_record(task, message)
  redis.call("RPUSH", prefix .. "dead:" .. queue, record)
  redis.call("HINCRBY", prefix .. "counts", "dead_lettered", 1)
  leave_obituary(prefix, rules, write_running(owner, why, queue, record))
end

-- The process of a body that had begun is gone: its task waits again, or is a dead letter.
local function after_death(prefix, rules, owner, queue, task, message)
  task.deaths = task.deaths + 1
  if rules.max_deliveries == 0 or task.deaths < rules.max_deliveries then
    enqueue(prefix, queue, task, message, false, true)
  else
    bury(prefix, rules, "dead", owner, queue, task, message)
  end
end

local function expire_one(prefix, rules, lease, row)
  local owner, state, queue, record = read_running(row)
  local task, message = read_record(record)
  end_lease(prefix, lease, task.key)
  redis.call("HINCRBY", prefix .. "counts", "expired", 1)
  if state == "acked" then
    redis.call("SREM", prefix .. "known", task.tag)
    redis.call("HINCRBY", prefix .. "counts", "abandoned", 1)
    leave_obituary(prefix, rules, row)
  elseif state == "begun" then
    after_death(prefix, rules, owner, queue, task, message)
  else
    enqueue(prefix, queue, task, message, false, true)
  end
  reopen(prefix, task.key, rules)
end

-- What ends now, at most `most`: leases that nobody renewed, and the wait for a lease of the gate.
-- Returns how many did.
local function expire(prefix, rules, most)
  local ended = redis.call(
    "ZRANGEBYSCORE", prefix .. "ends", "-inf", rules.logical, "LIMIT", 0, most)
  for index = 1, #ended do
    local lease = ended[index]
    local row = redis.call("HGET", prefix .. "running", lease)
    if row then
      expire_one(prefix, rules, lease, row)
    else
      redis.call("ZREM", prefix .. "ends", lease)
      if string.sub(lease, 1, 1) == " " then reopen(prefix, string.sub(lease, 2), rules) end
    end
  end
  return #ended
end
