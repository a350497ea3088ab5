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
  ARGV[7]  reason         str  of a cool-down, for its event; may be ""
  ARGV[8]  by             str  the person who pauses or resumes it; may be ""

  Returns {cool_ms, pause_ms, now_ms, paused_by}: how long it still cools down, and is paused; 0: it
  does not, it is not; -1: until it is resumed. Then the server's time, and of a pause when it began
  and the person, as in stops.lua; "" without one.
]]
--- @include "events"
--- @include "tick"
--- @include "said"
local prefix, how, key, wait_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local lease_ms, frozen_ms, reason, by = tonumber(ARGV[4]), ARGV[6], ARGV[7], ARGV[8]

local logical, now = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {logical = logical, now = now, enforcement = ARGV[5]}
local before = paused_ms(prefix, key, rules)
if how == "cool" then
  local moved = redis.call(
    "ZADD", prefix .. "cooled", "GT", "CH", string.format("%.0f", logical + wait_ms), key)
  if moved == 1 then
    write_event(prefix, "rate_limit.dynamic_adjusted",
      "key", key, "until", string.format("%.0f", now + wait_ms), "reason", reason)
  end
  -- Claims forget what is over.
  redis.call("HSET", prefix .. "clock", "limited", 1)
elseif how == "clear" then
  if redis.call("ZREM", prefix .. "cooled", key) == 1 then
    write_event(prefix, "fairness.cool_down_cleared", "key", key)
  end
else
  redis.call("SREM", prefix .. "paused", key)
  redis.call("ZREM", prefix .. "paused_until", key)
  redis.call("HDEL", prefix .. "paused_by", key)
end
if how == "pause" then
  redis.call("HSET", prefix .. "paused_by", key, string.format("%.0f %s", now, by))
end
if how == "pause" and wait_ms == 0 then
  redis.call("SADD", prefix .. "paused", key)
elseif how == "pause" then
  redis.call("ZADD", prefix .. "paused_until", string.format("%.0f", now + wait_ms), key)
end
if how ~= "cool" then said(prefix, key, rules) end
local cooled = tonumber(redis.call("ZSCORE", prefix .. "cooled", key) or 0)
local pause_ms = paused_ms(prefix, key, rules)
if pause_ms ~= before and pause_ms > 0 then
  local ends = pause_ms < math.huge and string.format("%.0f", now + pause_ms) or ""
  write_event(prefix, "fairness.paused", "key", key, "until", ends, "by", by)
elseif pause_ms ~= before then
  write_event(prefix, "fairness.resumed", "key", key, "by", by)
end
if pause_ms == math.huge then pause_ms = -1 end
local said_by = redis.call("HGET", prefix .. "paused_by", key) or ""
return {math.max(0, cooled - logical), pause_ms, now, said_by}
