--[[
  again: attempts that end otherwise than well: their tasks wait again, or are dead letters.

  Twice is harmless, and so is the end of a lease that has ended: its task waits again. Where its
  attempt reports an end all the same and nobody has claimed it since, it is taken out of its lane: it
  must not run twice.

  Returns a code.
    1 SETTLED   2 WITHDRAWN   0 LATE
]]
--- @include "events"
--- @include "leases"
--- @include "obituaries"
--- @include "removing"
--- @include "waiting"
--- @include "watched"

-- The queue of its service to which tasks of a queue may have been moved (move.lua).
local function other_queue(queue)
  local service, class = string.match(queue, "^(.+)_(%l+)$")
  if class == "priority" then return service .. "_default" end
  if class == "default" then return service .. "_priority" end
end

-- Takes a task that came back out of its lane: returns whether it waited there.
local function withdraw(prefix, queue, key, rank, tag)
  local record = redis.call("HGET", prefix .. "returned", tag)
  if not record then return false end
  local task = read_record(record)
  if task.key ~= key or task.rank ~= rank then return false end
  local other = other_queue(queue)
  local at = remove_back(prefix, queue, task) and queue
    or other and remove_back(prefix, other, task) and other
  if not at then return false end
  redis.call("ZREM", prefix .. "expires:" .. at, tag)
  redis.call("SREM", prefix .. "known", tag)
  return true
end

-- A task becomes a dead letter; `why` is the state of its obituary.
local function bury(prefix, rules, why, owner, queue, task, message)
  local record = write_record(task, message)
  redis.call("RPUSH", prefix .. "dead:" .. queue, record)
  redis.call("HINCRBY", prefix .. "counts", "dead_lettered", 1)
  write_event_of(prefix, "fairness.dead_lettered", queue, task, message,
    "reason", why, "deaths", task.deaths)
  leave_obituary(prefix, rules, write_running(owner, why, queue, record))
end

-- The process of a body that had begun is gone: its task waits again, or is a dead letter.
local function after_death(prefix, rules, owner, queue, task, message)
  task.deaths = task.deaths + 1
  if rules.max_deliveries == 0 or task.deaths < rules.max_deliveries then
    enqueue_back(prefix, queue, task, message)
  else
    bury(prefix, rules, "dead", owner, queue, task, message)
  end
end

-- Of a row of `running` that ends: owner, state, queue, its task as it waits again, the message, and the
-- keys of which it held slots.
local function read_ended(row)
  local owner, state, queue, record = read_running(row)
  local task, message = read_record(record)
  local keys = keys_of(task.key, task.limits)
  task.limits = without_whole(task.limits)
  return owner, state, queue, task, message, keys
end

local function expire_one(prefix, rules, lease, row)
  if rules.watched then tell_ended(prefix, row, "expired", rules) end
  local owner, state, queue, task, message, keys = read_ended(row)
  end_lease(prefix, lease, keys, rules)
  redis.call("HINCRBY", prefix .. "counts", "expired", 1)
  write_event_of(prefix, "fairness.lease_expired", queue, task, message,
    "owner", owner, "state", state)
  if state == "acked" then
    redis.call("SREM", prefix .. "known", task.tag)
    redis.call("HINCRBY", prefix .. "counts", "abandoned", 1)
    write_event_of(prefix, "fairness.abandoned", queue, task, message, "owner", owner)
    local record = write_record(task, message)
    leave_obituary(prefix, rules, write_running(owner, state, queue, record))
  elseif state == "begun" then
    after_death(prefix, rules, owner, queue, task, message)
  else
    enqueue_back(prefix, queue, task, message)
  end
  freed(keys, rules)
end

local function settle_late(prefix, rules, lease, verdict, lane_text)
  local keys, rank, queue = string.match(lane_text, "^(%S+) (%d) (.*)$")
  if verdict == "begun" or not keys then return 0 end
  local key = string.match(keys, "^[^,]+")
  -- A lease that was entered again after Redis had lost its memory is counted, and nothing else.
  if verdict ~= "acked" then
    local gone = 0
    for each in string.gmatch(keys, "[^,]+") do
      local leases = prefix .. "leases:" .. each
      gone = gone + redis.call("ZREM", leases, lease)
      if redis.call("ZCOUNT", leases, "-inf", "(+inf") == 0 then
        redis.call("ZREM", prefix .. "ends", "  " .. each)
      end
    end
    if gone > 0 then freed(keys, rules) end
  end
  if verdict ~= "done" and verdict ~= "acked" then return 0 end
  local tag = string.match(lease, "^(.+)%.%d+%.%w+$")
  return tag and withdraw(prefix, queue, key, rank, tag) and 2 or 0
end

-- An attempt has ended, but for one that is done.
local function end_otherwise(prefix, rules, lease, verdict, row)
  if rules.watched then tell_ended(prefix, row, verdict, rules) end
  local owner, state, queue, task, message, keys = read_ended(row)
  end_lease(prefix, lease, keys, rules)
  if state == "acked" then
    redis.call("SREM", prefix .. "known", task.tag)
  elseif verdict == "tail" then
    task.seq = redis.call("INCR", prefix .. "sequence")
    enqueue(prefix, queue, task, message, false)
  elseif verdict == "died" then
    after_death(prefix, rules, owner, queue, task, message)
  elseif verdict == "unreadable" then
    bury(prefix, rules, verdict, owner, queue, task, message)
  else
    enqueue_back(prefix, queue, task, message)
  end
  freed(keys, rules)
  return 1
end
