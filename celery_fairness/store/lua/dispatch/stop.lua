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
  ARGV[7]  reason         str  of a cool-down, for its event; may be ""

  Returns {paused, cool_ms}: 1 or 0; how long it still cools down, 0: it does not.
]]
--- @include "events"
--- @include "tick"
--- @include "pump"
local prefix, how, key, wait_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local lease_ms, frozen_ms, reason = tonumber(ARGV[4]), ARGV[6], ARGV[7]

local logical, now = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {logical = logical, enforcement = ARGV[5]}
if how == "pause" then
  if redis.call("SADD", prefix .. "paused", key) == 1 then
    write_event(prefix, "fairness.paused", "key", key)
  end
elseif how == "cool" then
  local moved = redis.call(
    "ZADD", prefix .. "cooled", "GT", "CH", string.format("%.0f", logical + wait_ms), key)
  if moved == 1 then
    write_event(prefix, "rate_limit.dynamic_adjusted",
      "key", key, "until", string.format("%.0f", now + wait_ms), "reason", reason)
  end
  -- Claims forget what is over.
  redis.call("HSET", prefix .. "clock", "limited", 1)
elseif how == "resume" then
  if redis.call("SREM", prefix .. "paused", key) == 1 then
    write_event(prefix, "fairness.resumed", "key", key)
  end
  pump(prefix, key, rules, false)
else
  if redis.call("ZREM", prefix .. "cooled", key) == 1 then
    write_event(prefix, "fairness.cool_down_cleared", "key", key)
  end
  pump(prefix, key, rules, false)
end
local cooled = tonumber(redis.call("ZSCORE", prefix .. "cooled", key) or 0)
return {redis.call("SISMEMBER", prefix .. "paused", key), math.max(0, cooled - logical)}
