--[[
  gate_slots: leases of a gate under one key.
]]
--- @include "gate_watched"
--- @include "pace"
--- @include "freed"

-- A set of leases that nobody asks about goes by itself, much later than any outage.
local KEEP_LEASES_MS = 86400000
-- Ended leases of one key that one call clears away.
local CLEAR_AT_MOST = 64

local function clear_ended(prefix, key, rules)
  local leases = prefix .. "leases:" .. key
  local ended = redis.call(
    "ZRANGEBYSCORE", leases, "-inf", rules.logical, "WITHSCORES", "LIMIT", 0, CLEAR_AT_MOST)
  for index = 1, #ended, 2 do
    redis.call("ZREM", leases, ended[index])
    -- It has lived until then, however late it is cleared away.
    local at = tonumber(ended[index + 1])
    if rules.paced then note_end(prefix, ended[index], key, {logical = at}) end
    if rules.watched then tell_gate_ended(prefix, ended[index], "expired", at) end
  end
  if #ended > 0 then note_freed(prefix .. "freed:" .. key) end
end

local function take_slot(prefix, key, lease, ends)
  local leases = prefix .. "leases:" .. key
  redis.call("ZADD", leases, whole(ends), lease)
  redis.call("PEXPIRE", leases, KEEP_LEASES_MS)
end

-- A task starts that has `limit`. Leases of tenants' keys are not noted: who gives such a slot back may
-- not know that a limit counted it (release.lua).
local function begin_slot(prefix, limit, lease, rules)
  if string.sub(limit.key, 1, 7) == "tenant:" or not note_begin(prefix, limit, lease, rules) then return end
  redis.call("PEXPIRE", prefix .. "began:" .. limit.key, KEEP_LEASES_MS)
  -- Of one without windows nothing else says by which number it was judged, for people who look.
  if limit.rates ~= "" or limit.throttle ~= "" then return end
  local pace = prefix .. "pace:" .. limit.key
  redis.call("HSET", pace, "asked", limit.concurrency)
  redis.call("PEXPIRE", pace, KEEP_LEASES_MS)
end

-- How long until the first lease of a key ends by itself, -1 where that of a claim is first.
local function first_end_ms(prefix, key, logical)
  local first = redis.call("ZRANGEBYSCORE", prefix .. "leases:" .. key, "(" .. whole(logical), "+inf",
    "WITHSCORES", "LIMIT", 0, 1)
  local ends = tonumber(first[2])
  return (not ends or ends == math.huge) and -1 or ends - logical
end
