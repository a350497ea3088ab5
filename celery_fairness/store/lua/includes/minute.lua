--[[
  minute: how often something happened in one minute of the server's time, by what, tier and queue.

  minute_key    hash  "WHAT TIER QUEUE" -> how often

  What the WHATs are is told by dispatch/includes/minutes.lua.
]]

-- So long the numbers of a minute are kept, by the server's time.
local MINUTE_MS, KEPT_MS = 60000, 21660000
-- Of more fields of a minute the others are counted as those of one queue.
local MINUTE_FIELDS_AT_MOST, OTHER_QUEUES = 1000, "_other"

local function minute_of(now)
  return string.format("%.0f", math.floor(now / MINUTE_MS))
end

local function minute_field(what, tier, queue)
  local first = what .. " " .. (tier or "") .. " "
  return first .. queue, first .. OTHER_QUEUES
end

-- `other` is the field where there are too many; one command where the field is known.
local function count_in_minute(minute_key, field, other, count)
  if redis.call("HINCRBY", minute_key, field, count) > count then return end
  if redis.call("HLEN", minute_key) > MINUTE_FIELDS_AT_MOST then
    redis.call("HDEL", minute_key, field)
    redis.call("HINCRBY", minute_key, other, count)
  end
  redis.call("PEXPIRE", minute_key, KEPT_MS)
end
