--[[
  promote: give a worker tasks that wait for a gate's limits and may start by now, to be published
  again: of each key the one that waits longest first. Each is promised its starts for one lease; one
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
--- @include "gate_parked"
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
  task.record, task.places = record, parked_places(task.key, task.words)
  return task
end

local function give(tag, task, promises, ended)
  local copy, serial = prefix .. "copy:" .. tag, next_serial .. whole(#answer)
  local published = redis.call("HGET", copy, "next") or serial
  leave_gate(prefix, task.key, tag, task.places)
  copy_parked(prefix, tag, published, serial, task.seq, task.told, keep_ms)
  redis.call("ZREM", prefix .. "gate_expires", tag)
  redis.call("ZADD", prefix .. "gate_promoted", whole(logical + lease_ms), tag)
  if promises then
    local _, weight = entitled(prefix, task, rules)
    charge_turns(prefix, tenant_of(task.key), task.places, weight)
    promise_starts(prefix, tag, rules.tier_waits and task.key or "", task.words, rules, lease_ms, keep_ms)
  end
  answer[#answer + 1] = tag
  answer[#answer + 1] = serial
  answer[#answer + 1] = (ended or task.expires == "0") and "1" or ""
  answer[#answer + 1] = string.match(task.record, "\n(.*)$")
end

local over = redis.call(
  "ZRANGEBYSCORE", prefix .. "gate_promoted", "-inf", whole(logical), "LIMIT", 0, SWEEP_AT_MOST)
for index = 1, #over do
  local task = parked_task(over[index])
  redis.call("ZREM", prefix .. "gate_promoted", over[index])
  if task then
    leave_gate(prefix, task.key, over[index], task.places)
    if task.expires ~= "" then redis.call("ZADD", prefix .. "gate_expires", task.expires, over[index]) end
    wait_at(prefix, task, over[index], task.places[1], 0)
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

local moved = {}
-- Gives what may start of those that wait at a key. Returns when it is looked at again, nil where nobody
-- waits there any more.
local function look_at_key(key, since)
  local heads, more = heads_of(prefix, key, since, logical)
  local again, looks = more and since or math.huge, 0
  -- Each closes its place, is looked at or is the last.
  for _ = 0, TASKS_AT_MOST + PLACES_AT_MOST do
    local head = first_head(prefix, heads)
    if not head then return again < math.huge and again or nil end
    if looks == TASKS_AT_MOST or #answer > 4 * want then return math.min(again, logical) end
    local task, at, closed_ms = head.tag and parked_task(head.tag), nil, nil
    if task and enforcement == "on" then
      at, closed_ms = kept_by(prefix, task, limits_now(prefix, task.words, rules), rules)
    end
    if task and enforcement == "on" and not at and not moved[head.tag] then
      -- It goes where it is behind somebody, once in a call, so that those come before.
      at, closed_ms = others_turn(prefix, task, task.places, head.place), 0
      moved[head.tag] = at
    end
    local open_at = at and logical + math.min(closed_ms, LOOK_AT_LIMIT_MS)
    if at and key_of_place(at) == key then again = math.min(again, open_at) end
    if at == head.place then
      head.closed = true
    elseif task and not at then
      give(head.tag, task, enforcement == "on")
    elseif head.tag then
      -- Without a record it has come to a gate by now, with other limits.
      leave_place(prefix, head.tenant, head.tag, head.place)
      if at then wait_at(prefix, task, head.tag, at, open_at) end
    end
    if not head.closed then looks = looks + 1 end
  end
end

local due = redis.call("ZRANGEBYSCORE", prefix .. "gate_looks", "-inf", whole(logical), "WITHSCORES",
  "LIMIT", 0, KEYS_AT_MOST)
for index = 1, #due, 2 do
  local again = look_at_key(due[index], tonumber(due[index + 1]))
  if again then
    redis.call("ZADD", prefix .. "gate_looks", whole(again), due[index])
  else
    redis.call("ZREM", prefix .. "gate_looks", due[index])
  end
end

-- Promotions and expiries are looked for so often too.
local first = redis.call("ZRANGE", prefix .. "gate_looks", 0, 0, "WITHSCORES")[2]
local sleep_ms = first and math.min(tonumber(first) - logical, LOOK_AT_LIMIT_MS) or LOOK_AT_LIMIT_MS
answer[1] = math.max(0, math.ceil(sleep_ms))
if answer[1] == 0 then ring_gate(prefix) end
if not still_parked(prefix) then answer[1] = -1 end
return answer
