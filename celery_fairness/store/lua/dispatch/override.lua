--[[
  override: put numbers in the place of a key's own, until a time or until they are cleared.

  What runs runs on. What waited at the key and may start is found by the next claim.

  KEYS[1]  prefix         str  what every key of the installation begins with

  ARGV[1]  key            str  of the limits, or of a tenant
  ARGV[2]  numbers        str  "CONCURRENCY|RATES|THROTTLE" as in stops.lua, or "" clears them
  ARGV[3]  lasts_ms       int  for how long from now; 0: see ends_ms
  ARGV[4]  ends_ms        str  server time at which they end, or "": when they are cleared
  ARGV[5]  details        str  what scripts do not read
  ARGV[6]  lease_ms       int  how long a lease lives without a renewal
  ARGV[7]  enforcement    str  "on", "observe" or "off"
  ARGV[8]  frozen_ms      str  "" in production (server TIME); set only by tests

  Returns a code.
    1 DONE   0 PAST
]]
--- @include "tick"
--- @include "said"
local prefix, key, numbers, lasts_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local ends_ms, details, lease_ms, frozen_ms = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[8]

local logical, now = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {logical = logical, now = now, enforcement = ARGV[7]}
if lasts_ms > 0 then ends_ms = string.format("%.0f", now + lasts_ms) end
if ends_ms ~= "" and tonumber(ends_ms) <= now then return 0 end
local had = redis.call("HDEL", prefix .. "overrides", key)
redis.call("ZREM", prefix .. "overrides_end", key)
if numbers ~= "" then
  redis.call("HSET", prefix .. "overrides", key, numbers .. "|" .. ends_ms .. " " .. details)
  if ends_ms ~= "" then redis.call("ZADD", prefix .. "overrides_end", ends_ms, key) end
end
if numbers ~= "" then
  write_event(prefix, "fairness.override_set", "key", key, "numbers", numbers)
elseif had == 1 then
  write_event(prefix, "fairness.override_ended", "key", key)
end
said(prefix, key, rules)
return 1
