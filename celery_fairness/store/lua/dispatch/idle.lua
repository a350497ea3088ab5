--[[
  idle: a task of a gate starts that the tier had rejected. How long it has waited for its snooze while its
  tenant had a free slot is added up for its worker; the answer is what the worker is to log.

  KEYS[1]  prefix     str  what every key of the installation begins with

  ARGV[1]  worker     str  whose attempt it is
  ARGV[2]  key        str  of the tenant's tier limit
  ARGV[3]  short_ms   int  a shorter wait is the way through the broker
  ARGV[4]  least_ms   int  less in all is not logged
  ARGV[5]  every_ms   int  how often the worker logs it at most
  ARGV[6]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns {tenants, waited_ms} to log; both are 0 where nothing is.
]]
--- @include "now"
local prefix, worker, key = KEYS[1], ARGV[1], ARGV[2]
local short_ms, least_ms, every_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local frozen_ms = ARGV[6]

-- More tenants are counted as so many.
local TENANTS_AT_MOST = 1000

-- After the last slot that was given back the free ones only become fewer, and one was free just now.
local freed = tonumber(redis.call("GET", prefix .. "freed:" .. key) or "")
local waited_ms = freed and server_now(frozen_ms) - freed or 0
if waited_ms < short_ms then return {0, 0} end
if redis.call("HLEN", prefix .. "idle_slots:" .. worker) <= TENANTS_AT_MOST then
  redis.call("HSET", prefix .. "idle_slots:" .. worker, key, 1)
end
local all_ms = redis.call("HINCRBY", prefix .. "idle_slots:" .. worker, "", waited_ms)
redis.call("PEXPIRE", prefix .. "idle_slots:" .. worker, 2 * every_ms)
if all_ms < least_ms then return {0, 0} end
local first = redis.call("SET", prefix .. "idle_told:" .. worker, "", "NX", "PX", every_ms)
if not first then return {0, 0} end
local tenants = redis.call("HLEN", prefix .. "idle_slots:" .. worker) - 1
redis.call("DEL", prefix .. "idle_slots:" .. worker)
return {tenants, all_ms}
