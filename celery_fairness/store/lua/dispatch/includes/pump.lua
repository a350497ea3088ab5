--[[
  pump: a key may have room: what waits at its limits and is open becomes a candidate of its queue.

  Level by level: whoever changed something calls it, as often as it likes. Where more wait than one
  call looks at, the others are due at once: `rules.looks` says how many it may still look at.
]]
--- @include "judge"
--- @include "parking"

-- Waiting limits that one call looks at, of all keys; a claim looks at as many again of keys whose time
-- has come.
local PUMPED_AT_MOST = 64

-- What waits in a queue may start.
local function wake_queue(prefix, queue)
  if redis.call("HEXISTS", prefix .. "waiting", queue) == 1 then ring_bell(prefix, queue) end
end

-- A queue whose own limit this is was passed by as a whole.
local function wake_whole(prefix, key)
  local queue = string.match(key, "^queue:[^:]+$") and redis.call("HGET", prefix .. "queue_keys", key)
  if queue then wake_queue(prefix, queue) end
end

-- Looks at what waits at a key; says whether anything does. `goes_on` where a look was not ended.
local function look_at_waited(prefix, key, rules, goes_on)
  local waited = prefix .. "waited:" .. key
  local length = redis.call("LLEN", waited)
  if length == 0 then return false end
  -- A look from the first on may have been made since.
  local left = goes_on and tonumber(redis.call("HGET", prefix .. "looks", key) or 0) or length
  left = math.min(left, length)
  if redis.call("EXISTS", prefix .. "looks") == 1 then forget_looks(prefix, key) end
  local may = rules.looks or PUMPED_AT_MOST
  local looked = math.min(left, may)
  rules.looks = may - looked
  if left > looked then
    redis.call("HSET", prefix .. "looks", key, left - looked)
    redis.call("ZADD", prefix .. "opens", rules.logical, " " .. key)
  end
  for _ = 1, looked do
    local both = redis.call("LMOVE", waited, waited, "LEFT", "RIGHT")
    local name, queue = string.match(both, "^(%S+) (.*)$")
    local candidates = prefix .. "candidates:" .. queue
    local opened = redis.call("ZSCORE", candidates, name)
    -- Where somebody has deleted it the others go on.
    if opened and tonumber(opened) < 0 then
      local limit = limit_now(prefix, name, rules)
      local wait = wait_ms(prefix, limit, rules)
      if wait == 0 then
        redis.call("ZADD", candidates, rules.logical, name)
        ring_bell(prefix, queue)
      else
        shut(prefix, queue, limit, stopped_ms(prefix, limit, rules) > 0)
        if wait < math.huge then
          redis.call("ZADD", prefix .. "opens", "LT", rules.logical + wait, key)
        end
      end
    end
  end
  if left > looked then
    ring_bell(prefix, string.match(redis.call("LINDEX", waited, 0), "^%S+ (.*)$"))
  end
  return true
end

local function pump(prefix, key, rules, goes_on)
  wake_whole(prefix, key)
  look_at_waited(prefix, key, rules, goes_on)
end

-- At how many of these keys something waits.
local function count_waited(prefix, keys)
  local count = 0
  for first = 1, #keys, KEYS_AT_ONCE do
    local some = {unpack(keys, first, math.min(#keys, first + KEYS_AT_ONCE - 1))}
    for index = 1, #some do some[index] = prefix .. "waited:" .. some[index] end
    count = count + redis.call("EXISTS", unpack(some))
  end
  return count
end

-- Each once: the limits' keys of leases that ended, and after them the tenants' too.
local function keys_of_ended(ended)
  local keys, limits, met = {}, {}, {}
  for index = 1, #ended do
    for key in string.gmatch(ended[index], ",([^,]+)") do
      if not met[key] then
        keys[#keys + 1] = key
        limits[#limits + 1] = key
      end
      met[key] = true
    end
  end
  for index = 1, #ended do
    local key = string.match(ended[index], "^[^,]+")
    if not met[key] then keys[#keys + 1] = key end
    met[key] = true
  end
  return keys, limits
end

-- Leases have ended, each told as its keys with commas: a limit's may be that of another tenant's tier.
local function free_all(prefix, ended, rules)
  local keys, limits = keys_of_ended(ended)
  stay_known(prefix, limits, rules.logical)
  for index = 1, #keys do
    if string.sub(keys[index], 1, 7) == "tenant:" then reopen(prefix, keys[index], rules) end
    wake_whole(prefix, keys[index])
  end
  -- Mostly at one of the first.
  local left = count_waited(prefix, keys)
  if left > 0 then know_declared(prefix, limits, rules) end
  for index = 1, #keys do
    if left == 0 then return end
    if look_at_waited(prefix, keys[index], rules, false) then left = left - 1 end
  end
end

-- Looks at keys whose time has come, at most `most`, and forgets others. Returns how many were due, `most`
-- where there may be more.
local function look_at_limits(prefix, rules, most)
  local due = redis.call(
    "ZRANGEBYSCORE", prefix .. "opens", "-inf", rules.logical, "LIMIT", 0, most)
  rules.looks = PUMPED_AT_MOST
  for index = 1, #due do
    -- Those that are left keep their turn.
    if rules.looks == 0 then break end
    redis.call("ZREM", prefix .. "opens", due[index])
    local key = string.match(due[index], "%S+")
    pump(prefix, key, rules, key ~= due[index])
  end
  local more = forget_idle(prefix, rules.logical)
  forget_cooled(prefix, rules.logical, most)
  return more and most or #due
end

-- A worker that enforces nothing opens what waits for room or time. Returns how many it opened.
local function open_all(prefix, queue, rules, most)
  local candidates = prefix .. "candidates:" .. queue
  local closed = redis.call("ZRANGEBYSCORE", candidates, "(" .. PAUSED, CLOSED, "LIMIT", 0, most)
  for index = 1, #closed do redis.call("ZADD", candidates, rules.logical, closed[index]) end
  return #closed
end
