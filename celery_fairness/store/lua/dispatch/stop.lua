--[[
  stop: pause or resume a key, let it cool down, or end that.

  A cool-down may be made longer by a later one, not shorter. What runs runs on. What waited at the
  key and may start is found by the next claim.

  KEYS[1]  prefix         str  what every key of the installation begins with

  ARGV[1]  how            str  "pause", "resume", "cool" or "clear"
  ARGV[2]  key            str  of the limits
  ARGV[3]  wait_ms        int  for "cool": for how long from now
  ARGV[4]  lease_ms       int  how long a lease lives without a renewal
  ARGV[5]  enforcement    str  "on", "observe" or "off"
  ARGV[6]  frozen_ms      str  "" in production (server TIME); set only by tests

  Returns {paused, cool_ms}: 1 or 0; how long it still cools down, 0: it does not.
]]
--- @include "tick"
--- @include "pump"
local prefix, how, key, wait_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local lease_ms, frozen_ms = tonumber(ARGV[4]), ARGV[6]

local logical = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {logical = logical, enforcement = ARGV[5]}
if how == "pause" then
  redis.call("SADD", prefix .. "paused", key)
elseif how == "cool" then
  redis.call("ZADD", prefix .. "cooled", "GT", string.format("%.0f", logical + wait_ms), key)
  -- Claims forget what is over.
  redis.call("HSET", prefix .. "clock", "limited", 1)
elseif how == "resume" then
  redis.call("SREM", prefix .. "paused", key)
  pump(prefix, key, rules, false)
else
  redis.call("ZREM", prefix .. "cooled", key)
  pump(prefix, key, rules, false)
end
local cooled = tonumber(redis.call("ZSCORE", prefix .. "cooled", key) or 0)
return {redis.call("SISMEMBER", prefix .. "paused", key), math.max(0, cooled - logical)}
