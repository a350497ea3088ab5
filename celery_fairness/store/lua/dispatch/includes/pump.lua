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

local function pump(prefix, key, rules, goes_on)
  if string.match(key, "^queue:[^:]+$") then
    local queue = redis.call("HGET", prefix .. "queue_keys", key)
    if queue then wake_queue(prefix, queue) end
  end
  local waited = prefix .. "waited:" .. key
  local length = redis.call("LLEN", waited)
  if length == 0 then return end
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
    if tonumber(redis.call("ZSCORE", candidates, name)) < 0 then
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
end

-- A lease of these keys has ended, told as a word with commas: a limit's may be that of another
-- tenant's tier.
local function free_all(prefix, keys, rules)
  for key in string.gmatch(keys, "[^,]+") do
    if string.sub(key, 1, 7) == "tenant:" then reopen(prefix, key, rules) end
    pump(prefix, key, rules, false)
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
