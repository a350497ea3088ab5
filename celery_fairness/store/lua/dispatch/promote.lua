--[[
  promote: give a worker tasks that wait for a gate's limits and may start by now, to be published
  again: of each limit the one that waits longest first. Each is promised its starts for one lease; one
  whose worker does not say within it that the broker has it is given to the next.

  What expired is given too, whatever its limits say: whoever receives it ends it.

  KEYS[1]  prefix        str  what every key of the installation begins with

  ARGV[1]  lease_ms      int  how long a lease lives without a renewal
  ARGV[2]  enforcement   str  "on"; else nothing that waits is kept
  ARGV[3]  default_tier  str  for a tier that is not known
  ARGV[4]  default_limit str  of the default tier, an integer or "unlimited"
  ARGV[5]  tier_waits    str  "1" where a task over its tier's limit waits here
  ARGV[6]  want          int  most tasks
  ARGV[7]  next_serial   str  the copies that are published are this and a number behind it
  ARGV[8]  keep_ms       int  how long the memory of copies is kept
  ARGV[9]  broker        str  to which the caller publishes; "" is any
  ARGV[10] frozen_ms     str  "" in production (server TIME); set only by tests

  Returns {sleep_ms, tag, serial, ended, message, ...}: when to ask again, -1 where nothing is parked,
  -2 where what is came from another broker; then each task, "1" where whoever receives it shall end it.
]]
--- @include "tick"
--- @include "copies"
--- @include "gate_kept"
--- @include "gate_ends"
local prefix, lease_ms, enforcement = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local default_tier, default_limit, tier_waits = ARGV[3], ARGV[4], ARGV[5]
local want, next_serial, keep_ms = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local broker, frozen_ms = ARGV[9], ARGV[10]

-- Promotions whose worker died, keys, and tasks of one key that one call looks at.
local SWEEP_AT_MOST, KEYS_AT_MOST, TASKS_AT_MOST = 16, 16, 8

local logical, now, _, said = tick(prefix .. "clock", lease_ms, frozen_ms)
if not said.parked then return {-1} end
if not is_of_broker(said, broker) then return {-2} end
local rules = {logical = logical, now = now, enforcement = enforcement, steered = said.steered, ahead = true,
  promotes = true, tier_waits = tier_waits == "1", default_tier = default_tier, default_limit = default_limit}
local answer = {0}

local function parked_task(tag)
  local record = redis.call("HGET", prefix .. "gate_tasks", tag)
  if not record then return nil end
  local task = read_parked(record)
  task.record, task.keys = record, parked_keys(task.key, task.words)
  return task
end

local function wait_at(tag, task, key, at)
  redis.call("ZADD", prefix .. "gate_wait:" .. key, task.seq, tag)
  look_at_gate(prefix, key, at)
end

local function give(tag, task, promises, ended)
  local copy, serial = prefix .. "copy:" .. tag, next_serial .. whole(#answer)
  local published = redis.call("HGET", copy, "next") or serial
  leave_gate(prefix, tag, task.keys)
  copy_parked(prefix, tag, published, serial, task.seq, task.told, keep_ms)
  redis.call("ZREM", prefix .. "gate_expires", tag)
  redis.call("ZADD", prefix .. "gate_promoted", whole(logical + lease_ms), tag)
  if promises then
    local keys = parked_keys(rules.tier_waits and task.key or "", task.words)
    for index = 1, #keys do
      local promises_key = prefix .. "gate_promised:" .. keys[index]
      redis.call("ZREMRANGEBYSCORE", promises_key, "-inf", whole(logical))
      redis.call("ZADD", promises_key, whole(logical + lease_ms), tag)
      redis.call("PEXPIRE", promises_key, keep_ms)
    end
  end
  answer[#answer + 1] = tag
  answer[#answer + 1] = serial
  answer[#answer + 1] = ended and "1" or ""
  answer[#answer + 1] = string.match(task.record, "\n(.*)$")
end

local over = redis.call(
  "ZRANGEBYSCORE", prefix .. "gate_promoted", "-inf", whole(logical), "LIMIT", 0, SWEEP_AT_MOST)
for index = 1, #over do
  local task = parked_task(over[index])
  redis.call("ZREM", prefix .. "gate_promoted", over[index])
  if task then
    leave_gate(prefix, over[index], task.keys)
    if task.expires ~= "" then redis.call("ZADD", prefix .. "gate_expires", task.expires, over[index]) end
    wait_at(over[index], task, task.keys[1], 0)
  end
end

local expired = redis.call(
  "ZRANGEBYSCORE", prefix .. "gate_expires", "-inf", whole(now), "LIMIT", 0, want)
for index = 1, #expired do
  local task = parked_task(expired[index])
  if task then
    tell_parked_end(prefix, expired[index], task.record, "fairness.expired")
    give(expired[index], task, false, true)
  else
    -- Somebody has deleted it.
    redis.call("ZREM", prefix .. "gate_expires", expired[index])
  end
end

local due = redis.call(
  "ZRANGEBYSCORE", prefix .. "gate_opens", "-inf", whole(logical), "LIMIT", 0, KEYS_AT_MOST)
for index = 1, #due do
  local key, again = due[index], logical
  for _ = 1, TASKS_AT_MOST do
    if #answer > 4 * want then break end
    local tag = redis.call("ZRANGE", prefix .. "gate_wait:" .. key, 0, 0)[1]
    if not tag then
      again = nil
      break
    end
    local task = parked_task(tag)
    local at, closed_ms
    if task and enforcement == "on" then
      at, closed_ms = kept_by(prefix, task, limits_now(prefix, task.words, rules), rules)
    end
    if not task then
      -- It has come to a gate by now, with other limits.
      redis.call("ZREM", prefix .. "gate_wait:" .. key, tag)
    elseif not at then
      give(tag, task, enforcement == "on")
    elseif at == key then
      again = logical + math.min(closed_ms, LOOK_AT_LIMIT_MS)
      break
    else
      redis.call("ZREM", prefix .. "gate_wait:" .. key, tag)
      wait_at(tag, task, at, logical + math.min(closed_ms, LOOK_AT_LIMIT_MS))
    end
  end
  if again then
    redis.call("ZADD", prefix .. "gate_opens", whole(again), key)
  else
    redis.call("ZREM", prefix .. "gate_opens", key)
  end
end

-- Promotions and expiries are looked for so often too.
local first = redis.call("ZRANGE", prefix .. "gate_opens", 0, 0, "WITHSCORES")[2]
local sleep_ms = first and math.min(tonumber(first) - logical, LOOK_AT_LIMIT_MS) or LOOK_AT_LIMIT_MS
answer[1] = math.max(0, math.ceil(sleep_ms))
if answer[1] == 0 then ring_gate(prefix) end
if redis.call("EXISTS", prefix .. "gate_tasks", prefix .. "gate_promoted") == 0 then
  redis.call("HDEL", prefix .. "clock", "parked")
  redis.call("UNLINK", prefix .. "gate_bell", prefix .. "gate_opens")
  answer[1] = -1
end
return answer
