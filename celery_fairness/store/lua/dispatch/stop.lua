--[[
  stop: pause or resume a key, let it cool down, or end that.

  A cool-down may be made longer by a later one, not shorter; a later pause stands in the place of the
  one before. What runs runs on. What waited at the key and may start is found by the next claim.

  KEYS[1]  prefix         str  what every key of the installation begins with

  ARGV[1]  how            str  "pause", "resume", "cool" or "clear"
  ARGV[2]  key            str  of the limits, or of a tenant
  ARGV[3]  wait_ms        int  for how long from now; for "pause" 0: until it is resumed
  ARGV[4]  lease_ms       int  how long a lease lives without a renewal
  ARGV[5]  enforcement    str  "on", "observe" or "off"
  ARGV[6]  frozen_ms      str  "" in production (server TIME); set only by tests

  Returns {cool_ms, pause_ms}: how long it still cools down, and is paused; 0: it does not, it is not;
  -1: until it is resumed.
]]
--- @include "tick"
--- @include "said"
local prefix, how, key, wait_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local lease_ms, frozen_ms = tonumber(ARGV[4]), ARGV[6]

local logical, now = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {logical = logical, now = now, enforcement = ARGV[5]}
if how == "cool" then
  redis.call("ZADD", prefix .. "cooled", "GT", string.format("%.0f", logical + wait_ms), key)
  -- Claims forget what is over.
  redis.call("HSET", prefix .. "clock", "limited", 1)
elseif how == "clear" then
  redis.call("ZREM", prefix .. "cooled", key)
else
  redis.call("SREM", prefix .. "paused", key)
  redis.call("ZREM", prefix .. "paused_until", key)
end
if how == "pause" and wait_ms == 0 then
  redis.call("SADD", prefix .. "paused", key)
elseif how == "pause" then
  redis.call("ZADD", prefix .. "paused_until", string.format("%.0f", now + wait_ms), key)
end
if how ~= "cool" then said(prefix, key, rules) end
local cooled = tonumber(redis.call("ZSCORE", prefix .. "cooled", key) or 0)
local pause_ms = paused_ms(prefix, key, rules)
if pause_ms == math.huge then pause_ms = -1 end
return {math.max(0, cooled - logical), pause_ms}
