--[[
  gate_parked: tasks that a gate refused and that wait here until their limits open.

  `gate_tasks` has a record of each: SEQ EXPIRES_MS KEY TENANT_KEY TIER CONCURRENCY LIMITS TOLD, a line's end,
  and the message, which no script reads. SEQ says since when it waits, EXPIRES_MS is "" where it does
  not expire, KEY is that of its tenant's tier, "" of a system task. TOLD is kept here because a task may
  wait for longer than its copies are remembered.

  A task waits at one of its places (gate_places.lua), or it was promoted (`gate_promoted`): it was given to a
  worker that publishes it again, and of each of its limits it was promised one start (`gate_promised`),
  until it comes to a gate or the promise ends.

  All that is parked came from one broker, whose name `parked` in the clock is: it goes back there. 1 is
  any broker's.
]]
--- @include "gate_bell"
--- @include "gate_watched"
--- @include "gate_places"

-- Whether what is parked may be given to who publishes to a broker, and theirs be parked beside it.
local function is_of_broker(said, broker)
  return not said.parked or said.parked == "1" or broker == "" or said.parked == broker
end

local function read_parked(record)
  local seq, expires, key, tenant_key, tier, concurrency, words, told =
    string.match(record, "^(%d+) (%d*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ \n]*)\n")
  return {seq = seq, expires = expires, key = key, tenant_key = tenant_key, tier = tier,
    concurrency = concurrency, words = words, told = told}
end

-- Of the copies of a parked message two may run: the last one that was published, and the next.
local function copy_parked(prefix, tag, current, next_serial, seq, told, keep_ms)
  local copy = prefix .. "copy:" .. tag
  redis.call("HDEL", copy, "admitted")
  redis.call("HSET", copy, "current", current, "next", next_serial, "seq", seq, "told", told)
  redis.call("PEXPIRE", copy, keep_ms)
end

-- Promises a task one start of each of its limits, for a lease.
local function promise_starts(prefix, tag, key, words, rules, lease_ms, keep_ms)
  local places = parked_places(key, words)
  for index = 1, #places do
    local promises = prefix .. "gate_promised:" .. key_of_place(places[index])
    redis.call("ZREMRANGEBYSCORE", promises, "-inf", whole(rules.logical))
    redis.call("ZADD", promises, whole(rules.logical + lease_ms), tag)
    redis.call("PEXPIRE", promises, keep_ms)
  end
end

-- Takes a task out of every place, and back what it was promised. A copy that comes to a gate may have other
-- limits, or another tenant, than the one that was parked.
local function leave_gate(prefix, key, tag, places)
  local record = redis.call("HGET", prefix .. "gate_tasks", tag)
  if record then
    local task = read_parked(record)
    key, places = task.key, parked_places(task.key, task.words)
  end
  for index = 1, #places do
    leave_place(prefix, tenant_of(key), tag, places[index])
    redis.call("ZREM", prefix .. "gate_promised:" .. key_of_place(places[index]), tag)
  end
end

-- Whether anything is parked; where nothing is nobody looks for it any more.
local function still_parked(prefix)
  if redis.call("EXISTS", prefix .. "gate_tasks", prefix .. "gate_promoted") > 0 then return true end
  redis.call("HDEL", prefix .. "clock", "parked")
  redis.call("UNLINK", prefix .. "gate_bell", prefix .. "gate_looks")
  return false
end

-- Forgets a task that is on its broker again, or nowhere any more.
local function forget_parked(prefix, key, tag, places)
  leave_gate(prefix, key, tag, places)
  redis.call("ZREM", prefix .. "gate_promoted", tag)
  redis.call("ZREM", prefix .. "gate_expires", tag)
  local known = redis.call("HDEL", prefix .. "gate_tasks", tag)
  still_parked(prefix)
  return known
end

-- The first limit, the tier's before, at whose place others of a gate wait already, and which says that
-- whoever it refuses waits; nil where there is none. Of the tier's only its key is said.
local function queue_of_gate(prefix, key, limits)
  if key ~= "" and redis.call("EXISTS", prefix .. "gate_turns:" .. key) == 1 then return {key = key} end
  for index = 1, #limits do
    local limit = limits[index]
    if limit.on_limit == "w" and redis.call("EXISTS", prefix .. "gate_turns:" .. limit.name) == 1 then
      return limit
    end
  end
end
