--[[
  unbegun: a claimed task ended before its body began, and gives back the starts that its claim took.

  Such a start leaves the log as if it had not been: later ones move up by one. Only one of the last
  LATER_AT_MOST starts of a key is found; one that is older counts as it is.
]]
--- @include "numbers"

local LATER_AT_MOST = 64

local function give_start_back(prefix, limit, at)
  local window_key, starts_key = prefix .. "window:" .. limit.key, prefix .. "starts:" .. limit.key
  -- As many as LATER_AT_MOST, the newest first.
  local last, found = redis.call("ZRANGE", starts_key, 0, 63, "REV"), nil
  for index = 1, LATER_AT_MOST do
    if not found and last[index] and string.match(last[index], "%d+$") == at then found = index end
  end
  if not found then return end
  local latest = last[found == 1 and 2 or 1]
  if not latest then
    redis.call("UNLINK", window_key, starts_key)
    redis.call("ZREM", prefix .. "idle", limit.key)
    return
  end
  redis.call("ZREM", starts_key, unpack(last, 1, found))
  for index = 1, LATER_AT_MOST do
    if index < found then
      local number, time = string.match(last[index], "^(%d+) (%d+)$")
      redis.call("ZADD", starts_key, number - 1, whole(number - 1) .. " " .. time)
    end
  end
  local window = redis.call("HMGET", window_key, "count", "ideal", "kept")
  local interval, latest_at = interval_of(limit.throttle), tonumber(string.match(latest, "%d+$"))
  -- Not before what the start that is the last one now demands.
  local ideal = math.max(window[2] - interval, latest_at - math.max(1, interval / 10))
  redis.call("HSET", window_key, "count", whole(window[1] - 1),
    "ideal", string.format("%.17g", math.min(window[2], ideal)))
  redis.call("ZADD", prefix .. "idle", latest_at + window[3], limit.key)
end

-- Of a row of `running`: nobody has said that its body began, and its worker says that it did not.
local function give_starts_back(prefix, row, rules)
  local _, state, _, record, since = read_running(row)
  local at = string.match(since, "^@(%d+)")
  if state ~= "claimed" or not at then return end
  local limits = of_one_key(limits_now(prefix, read_record(record).limits, rules))
  for index = 1, #limits do give_start_back(prefix, limits[index], at) end
end
