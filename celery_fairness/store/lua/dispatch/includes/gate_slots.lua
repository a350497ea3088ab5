--[[
  gate_slots: leases of a gate under one key.
]]
--- @include "starts"

-- A set of leases that nobody asks about goes by itself, much later than any outage.
local KEEP_LEASES_MS = 86400000
-- Ended leases of one key that one call clears away.
local CLEAR_AT_MOST = 64

local function clear_ended(prefix, key, logical)
  local leases = prefix .. "leases:" .. key
  local ended = redis.call("ZRANGEBYSCORE", leases, "-inf", logical, "LIMIT", 0, CLEAR_AT_MOST)
  if #ended > 0 then redis.call("ZREM", leases, unpack(ended)) end
end

local function take_slot(prefix, key, lease, ends)
  local leases = prefix .. "leases:" .. key
  redis.call("ZADD", leases, whole(ends), lease)
  redis.call("PEXPIRE", leases, KEEP_LEASES_MS)
end

-- How long until the first lease of a key ends by itself, -1 where that of a claim is first.
local function first_end_ms(prefix, key, logical)
  local first = redis.call("ZRANGEBYSCORE", prefix .. "leases:" .. key, "(" .. whole(logical), "+inf",
    "WITHSCORES", "LIMIT", 0, 1)
  local ends = tonumber(first[2])
  return (not ends or ends == math.huge) and -1 or ends - logical
end
