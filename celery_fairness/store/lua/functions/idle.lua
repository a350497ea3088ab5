--[[
  idle: a task starts at a gate after its tier had rejected it.

  Such a task may have waited for its snooze while its tenant had a free slot. These times are added up for its
  worker. The answer is what the worker must log.

  args[1]  worker     str  whose attempt it is
  args[2]  key        str  of the tenant's tier limit
  args[3]  short_ms   int  a shorter wait is the way through the broker
  args[4]  least_ms   int  a smaller sum is not logged
  args[5]  every_ms   int  how often the worker logs it at most
  args[6]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns {tenants, waited_ms} to log. Both are 0 if there is nothing to log.
]]
-- Further tenants are not counted.
local TENANTS_AT_MOST = 1000

register("idle", {"allow-oom"}, function(keys, args)
  local ctx, worker, key = {prefix = keys[1]}, args[1], args[2]
  local short_ms, least_ms, every_ms = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local frozen_ms = args[6]
  local now, slots = Clock.server_now(frozen_ms), ctx.prefix .. "idle_slots:" .. worker

  -- Since the last slot was given back, the number of free slots has only fallen. One slot was free just now.
  local freed = tonumber(redis.call("GET", ctx.prefix .. "freed:" .. key) or "")
  local waited_ms = freed and now - freed or 0
  if waited_ms < short_ms then return {0, 0} end
  if redis.call("HLEN", slots) <= TENANTS_AT_MOST then redis.call("HSET", slots, key, 1) end
  local all_ms = redis.call("HINCRBY", slots, "", waited_ms)
  redis.call("PEXPIRE", slots, 2 * every_ms)
  local logged = redis.call("HGET", slots, "logged")
  if all_ms < least_ms or logged and now - logged < every_ms then return {0, 0} end
  local tenants = redis.call("HLEN", slots) - (logged and 2 or 1)
  redis.call("DEL", slots)
  redis.call("HSET", slots, "logged", now)
  redis.call("PEXPIRE", slots, 2 * every_ms)
  return {tenants, all_ms}
end)
