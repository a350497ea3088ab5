--[[
  starts: when tasks started under a key, by their numbers.

  `window:KEY` (count, ideal, most, kept, asked) and `starts:KEY` say it: of the last EXACT starts all, of
  older ones every fortieth part of the largest rate; where one is missing the next later one stands
  for it. One part more than the largest rate is kept: where that has left the window the log has
  all that is in it, and a rate that is raised is open at once. All by the logical clock. `idle` says
  when a key's starts are forgotten; and, with a space before the key, that it is still known.
]]

-- Starts that are remembered one by one; the parts of a larger rate's log.
local EXACT, PARTS = 1000, 40
-- A key's starts are remembered so long, at least.
local REMEMBERED_MS = 60000
-- Keys that one command names: a script may give it so many words.
local KEYS_AT_ONCE = 1000
-- Keys that one call forgets.
local IDLE_AT_MOST = 256

local function whole(number)
  return string.format("%.0f", number)
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

local function interval_of(throttle)
  local starts, period_ms = string.match(throttle, "^(%d+)/(%d+)")
  return starts and tonumber(period_ms) / tonumber(starts) or 0
end

-- Limits as one for each key, for counting a start: it has the windows of all, and the wider spacing.
local function of_one_key(limits)
  local found, places = {}, {}
  for index = 1, #limits do
    local limit = limits[index]
    local place = places[limit.key]
    if place then
      -- The limits themselves may be asked for again.
      local one = found[place]
      local both = {name = one.name, key = one.key, private = one.private, on_limit = one.on_limit,
        concurrency = one.concurrency, rates = one.rates, throttle = one.throttle,
        of_process = one.of_process or limit.of_process, version = one.version or limit.version}
      if one.rates ~= limit.rates then
        both.rates = one.rates .. (one.rates ~= "" and limit.rates ~= "" and "+" or "") .. limit.rates
      end
      if interval_of(limit.throttle) > interval_of(one.throttle) then both.throttle = limit.throttle end
      found[place] = both
    else
      found[#found + 1] = limit
      places[limit.key] = #found
    end
  end
  return found
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
    -- Where nothing is enforced many start at once: they leave no debt.
    next_ideal = math.min(logical, next_ideal)
    kept = math.max(kept, period_ms)
  end
  for starts, period_ms in windows_of(limit.rates) do
    most, kept = math.max(most, starts), math.max(kept, period_ms)
  end
  -- By which numbers it was judged, for people who look.
  local asked = (limit.concurrency and whole(limit.concurrency) or "")
    .. "|" .. limit.rates .. "|" .. limit.throttle
  redis.call("HSET", window_key, "count", whole(count), "ideal", string.format("%.17g", next_ideal),
    "most", whole(most), "kept", whole(kept), "asked", asked)
  redis.call("ZADD", starts_key, count, whole(count) .. " " .. whole(logical))
  local older, part = count - EXACT, math.max(1, math.ceil(most / PARTS))
  if older > 0 and older % part ~= 0 then
    redis.call("ZREMRANGEBYSCORE", starts_key, older, older)
  end
  redis.call("ZREMRANGEBYSCORE", starts_key, "-inf", count - most - part)
  redis.call("ZADD", prefix .. "idle", logical + kept, limit.key)
end

-- Leases of these limits have ended: their keys are known for a while.
local function stay_known(prefix, keys, logical)
  for first = 1, #keys, KEYS_AT_ONCE do
    local some, known = {unpack(keys, first, math.min(#keys, first + KEYS_AT_ONCE - 1))}, {}
    for index = 1, #some do
      known[2 * index - 1] = logical + REMEMBERED_MS
      known[2 * index] = " " .. some[index]
    end
    redis.call("ZADD", prefix .. "idle", unpack(known))
  end
end

-- Forgets keys that nothing has used for long, and their starts. Returns whether there may be more.
local function forget_idle(prefix, logical)
  local idle = redis.call("ZRANGEBYSCORE", prefix .. "idle", "-inf", logical, "LIMIT", 0, IDLE_AT_MOST)
  if #idle == 0 then return false end
  local starts = {}
  for index = 1, #idle do
    starts[2 * index - 1] = prefix .. "window:" .. idle[index]
    starts[2 * index] = prefix .. "starts:" .. idle[index]
  end
  redis.call("ZREM", prefix .. "idle", unpack(idle))
  redis.call("UNLINK", unpack(starts))
  return #idle == IDLE_AT_MOST
end
