--[[
  starts: the times of the starts under a key, by the numbers of the starts.

  `window:KEY` has the sums. `starts:KEY` stores each of the last EXACT starts. It stores older starts only one by each
  fortieth part of the largest rate. The next later start stands for each start that is missing.

  The log keeps one part more than the largest rate. When that part has left the window, the log has all starts
  of the window. So a rate that people raise is open at once. All times are of the logical clock.
]]

-- The log stores the last 1000 starts one by one, and has 40 parts for a larger rate.
local EXACT, PARTS = 1000, 40
-- The server remembers the starts of a key for at least this time.
local REMEMBERED_MS = 60000
-- One command names at most 1000 keys, because a call passes a limited number of arguments.
Rates.KEYS_AT_ONCE = 1000
-- One call forgets at most 256 keys.
local IDLE_AT_MOST = 256

function Rates.int_text(number)
  return string.format("%.0f", number)
end

function Rates.windows_of(text)
  local next_window = string.gmatch(text, "(%d+)/(%d+)")
  return function()
    local starts, period_ms = next_window()
    return tonumber(starts), tonumber(period_ms)
  end
end

-- Returns the time until one more start fits into a window of a key that had `count` starts.
function Rates.rate_wait_ms(ctx, key, count, starts, period_ms, logical)
  if count < starts then return 0 end
  local number = redis.call("ZRANGEBYSCORE", ctx.prefix .. Keys.STARTS .. key,
    "(" .. Rates.int_text(count - starts), "+inf", "LIMIT", 0, 1)[1]
  -- Two starts may be up to 1 ms nearer than their whole milliseconds show.
  return math.max(0, tonumber(string.match(number, "%d+$")) + period_ms + 1 - logical)
end

-- Returns how many starts of a key a window of `period_ms` has that ends now. Also returns the time until it has
-- fewer, or fewer than `starts`. The times of the log do not fall, so a few entries are enough to find the first
-- start of the window.
function Rates.count_in(ctx, key, starts, period_ms, logical)
  local log, window = ctx.prefix .. Keys.STARTS .. key, redis.call("HMGET", ctx.prefix .. Keys.WINDOW .. key, "count", "most")
  local first, last, gone = 0, redis.call("ZCARD", log), nil
  local count, size = tonumber(window[1]), last
  while first < last do
    local middle = math.floor((first + last) / 2)
    local at = string.match(redis.call("ZRANGE", log, middle, middle)[1], "%d+$")
    if at + period_ms + 1 > logical then last = middle else first = middle + 1 end
  end
  if first == size or not count then return 0, 0 end
  if first > 0 then
    gone = tonumber(string.match(redis.call("ZRANGE", log, first - 1, first - 1)[1], "^%d+"))
  else
    -- The first entry may stand for starts of its part that the log does not have.
    local part = math.max(1, math.ceil(tonumber(window[2]) / PARTS))
    gone = math.max(0, tonumber(string.match(redis.call("ZRANGE", log, 0, 0)[1], "^%d+")) - part)
  end
  return count - gone, Rates.rate_wait_ms(ctx, key, count, math.min(starts, count - gone), period_ms, logical)
end

function Rates.interval_of(throttle)
  local starts, period_ms = string.match(throttle, "^(%d+)/(%d+)")
  return starts and tonumber(period_ms) / tonumber(starts) or 0
end

-- Joins the limits of each key to one limit, to count a start. It has the windows of all of them, and the
-- wider spacing.
function Rates.of_one_key(limits)
  local found, places = {}, {}
  for index = 1, #limits do
    local limit = limits[index]
    local place = places[limit.key]
    if place then
      -- The caller may read the limits themselves again, so a copy changes.
      local one, both = found[place], {}
      for field, value in pairs(one) do both[field] = value end
      both.of_process, both.version = one.of_process or limit.of_process, one.version or limit.version
      if one.rates ~= limit.rates then
        both.rates = one.rates .. (one.rates ~= "" and limit.rates ~= "" and "+" or "") .. limit.rates
      end
      if Rates.interval_of(limit.throttle) > Rates.interval_of(one.throttle) then both.throttle = limit.throttle end
      found[place] = both
    else
      found[#found + 1] = limit
      places[limit.key] = #found
    end
  end
  return found
end

-- Writes a start into the log of a key.
function Rates.count_start(ctx, limit, logical)
  local window_key, starts_key = ctx.prefix .. Keys.WINDOW .. limit.key, ctx.prefix .. Keys.STARTS .. limit.key
  local window = redis.call("HMGET", window_key, "count", "ideal", "most", "kept")
  if not window[1] and limit.rates == "" and limit.throttle == "" then return end
  local count, ideal = (tonumber(window[1]) or 0) + 1, tonumber(window[2]) or 0
  local most, kept = tonumber(window[3]) or 0, tonumber(window[4]) or REMEMBERED_MS
  local next_ideal = logical
  for starts, period_ms in Rates.windows_of(limit.throttle) do
    local interval = period_ms / starts
    next_ideal = math.max(ideal + interval, logical - math.max(1, interval / 10))
    -- If nothing is enforced, many tasks start at once, and they leave no debt.
    next_ideal = math.min(logical, next_ideal)
    kept = math.max(kept, period_ms)
  end
  for starts, period_ms in Rates.windows_of(limit.rates) do
    most, kept = math.max(most, starts), math.max(kept, period_ms)
  end
  -- The field `asked` shows people the numbers by which a call checked the start.
  local asked = (limit.concurrency and Rates.int_text(limit.concurrency) or "")
    .. "|" .. limit.rates .. "|" .. limit.throttle
  redis.call("HSET", window_key, "count", Rates.int_text(count), "ideal", string.format("%.17g", next_ideal),
    "most", Rates.int_text(most), "kept", Rates.int_text(kept), "asked", asked)
  redis.call("ZADD", starts_key, count, Rates.int_text(count) .. " " .. Rates.int_text(logical))
  local older, part = count - EXACT, math.max(1, math.ceil(most / PARTS))
  if older > 0 and older % part ~= 0 then
    redis.call("ZREMRANGEBYSCORE", starts_key, older, older)
  end
  redis.call("ZREMRANGEBYSCORE", starts_key, "-inf", count - most - part)
  redis.call("ZADD", ctx.prefix .. Keys.KEY_EXPIRY, logical + kept, limit.key)
end

-- Keeps the keys of limits known for a while after their leases have ended.
function Rates.stay_known(ctx, keys, logical)
  for first = 1, #keys, Rates.KEYS_AT_ONCE do
    local some, known = {unpack(keys, first, math.min(#keys, first + Rates.KEYS_AT_ONCE - 1))}, {}
    for index = 1, #some do
      known[2 * index - 1] = logical + REMEMBERED_MS
      known[2 * index] = " " .. some[index]
    end
    redis.call("ZADD", ctx.prefix .. Keys.KEY_EXPIRY, unpack(known))
  end
end

-- Forgets keys that nothing has used for long, and their starts. Returns whether there may be more.
function Rates.forget_idle(ctx, logical)
  local idle = redis.call("ZRANGEBYSCORE", ctx.prefix .. Keys.KEY_EXPIRY, "-inf", logical, "LIMIT", 0, IDLE_AT_MOST)
  if #idle == 0 then return false end
  local starts = {}
  for index = 1, #idle do
    starts[2 * index - 1] = ctx.prefix .. Keys.WINDOW .. idle[index]
    starts[2 * index] = ctx.prefix .. Keys.STARTS .. idle[index]
  end
  redis.call("ZREM", ctx.prefix .. Keys.KEY_EXPIRY, unpack(idle))
  redis.call("UNLINK", unpack(starts))
  return #idle == IDLE_AT_MOST
end

--[[
  unbegun: a claimed task ended before its body began, and gives back the starts that its claim took.

  Such a start leaves the log as if it had not happened, and later starts move up by one. A call finds only one
  of the last LATER_AT_MOST starts of a key. An older start stays counted.
]]

local LATER_AT_MOST = 64

function Rates.give_start_back(ctx, limit, at)
  local window_key, starts_key = ctx.prefix .. Keys.WINDOW .. limit.key, ctx.prefix .. Keys.STARTS .. limit.key
  -- The range has the newest LATER_AT_MOST starts.
  local last, found = redis.call("ZRANGE", starts_key, 0, LATER_AT_MOST - 1, "REV"), nil
  for index = 1, LATER_AT_MOST do
    if not found and last[index] and string.match(last[index], "%d+$") == at then found = index end
  end
  if not found then return end
  local latest = last[found == 1 and 2 or 1]
  if not latest then
    redis.call("UNLINK", window_key, starts_key)
    redis.call("ZREM", ctx.prefix .. Keys.KEY_EXPIRY, limit.key)
    return
  end
  redis.call("ZREM", starts_key, unpack(last, 1, found))
  for index = 1, LATER_AT_MOST do
    if index < found then
      local number, time = string.match(last[index], "^(%d+) (%d+)$")
      redis.call("ZADD", starts_key, number - 1, Rates.int_text(number - 1) .. " " .. time)
    end
  end
  local window = redis.call("HMGET", window_key, "count", "ideal", "kept")
  local interval, latest_at = Rates.interval_of(limit.throttle), tonumber(string.match(latest, "%d+$"))
  -- The ideal is not before the time that the start which is now the last one demands.
  local ideal = math.max(window[2] - interval, latest_at - math.max(1, interval / 10))
  redis.call("HSET", window_key, "count", Rates.int_text(window[1] - 1),
    "ideal", string.format("%.17g", math.min(window[2], ideal)))
  redis.call("ZADD", ctx.prefix .. Keys.KEY_EXPIRY, latest_at + window[3], limit.key)
end

-- Gives back the starts of a claimed task. Its worker reports that the body did not begin, and no worker has
-- reported that it began.
function Rates.give_starts_back(ctx, task, row, rules)
  local at = string.match(row.since, "^@(%d+)")
  if row.state ~= "claimed" or not at then return end
  local specs = Pick.with_queue_limit(ctx, task.queue, task.limits, rules)
  local limits = Rates.of_one_key(Limits.limits_now(ctx, specs, rules))
  for index = 1, #limits do Rates.give_start_back(ctx, limits[index], at) end
end
