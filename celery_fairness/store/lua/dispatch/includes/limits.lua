--[[
  limits: what a limit beside the tier's says, what it counts, and when it opens.

  A limit is a word: key|concurrency|rates|throttle|flags. A rate is STARTS/PERIOD_MS, several have a
  + between them; the flags are the first letter of on_limit, and p where the key was made from the
  tenant. Its name is the word without the flags. Limits of a task have a comma between them.

  `leases:KEY` counts what runs. `window:KEY` (count, ideal, most, kept) and `starts:KEY` say when
  starts were, by their numbers: the last EXACT all, of older ones every fortieth part of the largest
  rate; where one is missing the next later one stands for it. All by the logical clock. `idle` says
  when a key's starts are forgotten.
]]
--- @include "stops"

-- Starts that are remembered one by one; the parts of a larger rate's log.
local EXACT, PARTS = 1000, 40
-- A key's starts are remembered so long, at least.
local REMEMBERED_MS = 60000
-- A lease of the gate may be released without a word: look again so soon.
local LOOK_AT_LIMIT_MS = 1000
-- A full limit does not know when it opens: so soon a task is tried again.
local TRY_AGAIN_MS = 1000

local function whole(number)
  return string.format("%.0f", number)
end

local function read_limit(word)
  local name, flags = string.match(word, "^([^|]*|%d*|[^|]*|[^|]*)|?(%a*)$")
  local key, concurrency, rates, throttle = string.match(name, "^(.*)|(.*)|(.*)|(.*)$")
  return {name = name, key = key, concurrency = tonumber(concurrency), rates = rates,
    throttle = throttle, on_limit = string.sub(flags, 1, 1), private = string.sub(flags, 2) == "p"}
end

local function read_limits(words)
  local limits = {}
  for word in string.gmatch(words, "[^,]+") do limits[#limits + 1] = read_limit(word) end
  return limits
end

local function windows_of(text)
  local next_window = string.gmatch(text, "(%d+)/(%d+)")
  return function()
    local starts, period_ms = next_window()
    return tonumber(starts), tonumber(period_ms)
  end
end

-- How long until one more start fits into a window of a key that had `count`.
local function rate_wait_ms(prefix, key, count, starts, period_ms, logical)
  if count < starts then return 0 end
  local number = redis.call("ZRANGEBYSCORE", prefix .. "starts:" .. key,
    "(" .. whole(count - starts), "+inf", "LIMIT", 0, 1)[1]
  -- Two starts of one millisecond and its neighbours may be nearer than they look.
  return math.max(0, tonumber(string.match(number, "%d+$")) + period_ms + 1 - logical)
end

-- How long a limit is closed: 0 is open, math.huge until something else opens it. How soon a task
-- that is tried again comes, where it is closed; and what closes it: "paused", "cools", "full", "rate"
-- or "throttle".
local function wait_ms(prefix, limit, rules)
  local stopped = stopped_ms(prefix, limit, rules)
  if stopped == math.huge then return stopped, TRY_AGAIN_MS, "paused" end
  if stopped > 0 then return stopped, stopped, "cools" end
  if rules.enforcement ~= "on" then return 0 end
  local wait, again, why, logical = 0, 0, nil, rules.logical
  local after = "(" .. whole(logical)
  local leases = prefix .. "leases:" .. limit.key
  if limit.concurrency and redis.call("ZCOUNT", leases, after, "+inf") >= limit.concurrency then
    local of_gate = redis.call(
      "ZRANGEBYSCORE", leases, after, "(+inf", "WITHSCORES", "LIMIT", 0, 1)[2]
    wait = of_gate and math.min(tonumber(of_gate) - logical, rules.look_ms or LOOK_AT_LIMIT_MS)
      or math.huge
    again, why = of_gate and wait or TRY_AGAIN_MS, "full"
  end
  if limit.rates == "" and limit.throttle == "" then return wait, again, why end
  local window = redis.call("HMGET", prefix .. "window:" .. limit.key, "count", "ideal")
  if not window[1] then return wait, again, why end
  for starts, period_ms in windows_of(limit.rates) do
    local rate = rate_wait_ms(prefix, limit.key, tonumber(window[1]), starts, period_ms, logical)
    if rate > 0 then again, why = math.max(again, rate), why or "rate" end
  end
  for starts, period_ms in windows_of(limit.throttle) do
    local throttle = tonumber(window[2]) + period_ms / starts - logical
    if throttle > 0 then again, why = math.max(again, throttle), why or "throttle" end
  end
  return math.max(wait, again), again, why
end

-- The first limit that is closed, nil where none is. Where its task shall not wait it says what of it
-- (action, "d" or "r"), by which key (by), and how soon it is tried again (again_ms). Where the rules
-- weigh all limits it says too what closes the one that is named (why), and how long all of them do.
local function refusal(prefix, words, rules)
  local limits, at = read_limits(words), nil
  local weighs = rules.weighs or string.find(words, "|[dr]")
  local action, by, why, again_ms, longest = nil, nil, nil, 0, 0
  for index = 1, #limits do
    local limit = limits[index]
    local wait, again, closes = wait_ms(prefix, limit, rules)
    if wait > 0 then
      at, why = at or limit, why or closes
      if not weighs then return at end
      again_ms, longest = math.max(again_ms, again), math.max(longest, wait)
      local says = limit.on_limit
      if stopped_ms(prefix, limit, rules) == 0 and (says == "r" and not action or says == "d" and action ~= "d") then
        action, by, why = says, limit.key, closes
      end
    end
  end
  if action then at.action, at.by, at.again_ms = action, by, again_ms end
  if at then at.why, at.longest_ms = why, longest end
  return at
end

-- Writes a start into the log of a key.
local function count_start(prefix, limit, logical)
  local window_key, starts_key = prefix .. "window:" .. limit.key, prefix .. "starts:" .. limit.key
  local window = redis.call("HMGET", window_key, "count", "ideal", "most", "kept")
  if not window[1] and limit.rates == "" and limit.throttle == "" then return end
  local count, ideal = (tonumber(window[1]) or 0) + 1, tonumber(window[2]) or 0
  local most, kept = tonumber(window[3]) or 0, tonumber(window[4]) or REMEMBERED_MS
  local next_ideal = logical
  for starts, period_ms in windows_of(limit.throttle) do
    local interval = period_ms / starts
    next_ideal = math.max(ideal + interval, logical - math.max(1, interval / 10))
    kept = math.max(kept, period_ms)
  end
  for starts, period_ms in windows_of(limit.rates) do
    most, kept = math.max(most, starts), math.max(kept, period_ms)
  end
  redis.call("HSET", window_key, "count", whole(count),
    "ideal", string.format("%.17g", next_ideal), "most", whole(most), "kept", whole(kept))
  redis.call("ZADD", starts_key, count, whole(count) .. " " .. whole(logical))
  local older = count - EXACT
  if older > 0 and older % math.ceil(most / PARTS) ~= 0 then
    redis.call("ZREMRANGEBYSCORE", starts_key, older, older)
  end
  redis.call("ZREMRANGEBYSCORE", starts_key, "-inf", count - math.max(most, 1))
  redis.call("ZADD", prefix .. "idle", logical + kept, limit.key)
end

-- Forgets starts of keys that had none for long, at most `most`.
local function forget_idle(prefix, logical, most)
  local idle = redis.call("ZRANGEBYSCORE", prefix .. "idle", "-inf", logical, "LIMIT", 0, most)
  for index = 1, #idle do
    redis.call("ZREM", prefix .. "idle", idle[index])
    redis.call("UNLINK", prefix .. "window:" .. idle[index], prefix .. "starts:" .. idle[index])
  end
end
