--[[
  said: people have said something else of a key, or its time has ended: what waits may be open.

  A tenant is judged anew by the claims that come, as after news of its tier.
]]
--- @include "events"
--- @include "pump"

-- Of tasks of one time, so many are looked at to find one.
local SAME_TIME_AT_MOST = 16

-- What the key has put back, and remembers, is judged anew by the claims that come. Whatever it puts back
-- from now on, at a gate too, does not wait behind those that it put back before.
local function bring_forward(prefix, key, rules)
  local there = prefix .. "rescheduled:" .. whole_key(key)
  redis.call("HDEL", prefix .. "pace:" .. key, "next")
  local tasks = redis.call("ZRANGEBYSCORE", there, "(" .. whole(rules.now), "+inf",
    "WITHSCORES", "LIMIT", 0, FORWARD_AT_MOST)
  if #tasks == 0 then return end
  redis.call("UNLINK", there)
  for index = 1, #tasks, 2 do
    local seq, queue = string.match(tasks[index], "^(%d+) (.*)$")
    local later, at = prefix .. "later:" .. queue, tasks[index + 1]
    local same = redis.call("ZRANGEBYSCORE", later, at, at, "LIMIT", 0, SAME_TIME_AT_MOST)
    for each = 1, #same do
      if tonumber(string.match(same[each], "^%d+")) == tonumber(seq) then
        redis.call("ZADD", later, rules.now, same[each])
        ring_bell(prefix, queue)
      end
    end
  end
end

local function said(prefix, key, rules)
  note_steering(prefix)
  if string.sub(key, 1, 7) == "tenant:" then
    rules.version = redis.call("HINCRBY", prefix .. "news", "version", 1)
  end
  pump(prefix, key, rules, false)
  bring_forward(prefix, key, rules)
end

-- Ends pauses and overrides whose time has come, at most `most` of each. Returns how many at most.
local function end_steering(prefix, rules, most)
  local over = redis.call(
    "ZRANGEBYSCORE", prefix .. "overrides_end", "-inf", rules.now, "LIMIT", 0, most)
  for index = 1, #over do
    redis.call("ZREM", prefix .. "overrides_end", over[index])
    redis.call("HDEL", prefix .. "overrides", over[index])
    write_event(prefix, "fairness.override_ended", "key", over[index])
    said(prefix, over[index], rules)
  end
  local ended = redis.call(
    "ZRANGEBYSCORE", prefix .. "paused_until", "-inf", rules.now, "LIMIT", 0, most)
  for index = 1, #ended do
    redis.call("ZREM", prefix .. "paused_until", ended[index])
    redis.call("HDEL", prefix .. "paused_by", ended[index])
    write_event(prefix, "fairness.resumed", "key", ended[index], "by", "")
    said(prefix, ended[index], rules)
  end
  return math.max(#over, #ended)
end

-- How long until the next of them ends, at most `longest`.
local function steering_ends_ms(prefix, now, longest)
  local first = redis.call("ZRANGE", prefix .. "overrides_end", 0, 0, "WITHSCORES")[2]
  local second = redis.call("ZRANGE", prefix .. "paused_until", 0, 0, "WITHSCORES")[2]
  if first then longest = math.min(longest, tonumber(first) - now) end
  if second then longest = math.min(longest, tonumber(second) - now) end
  return longest
end
