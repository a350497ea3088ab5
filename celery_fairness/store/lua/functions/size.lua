--[[
  size: return how many tasks of a queue wait, and how many wait for their time. The function writes nothing.

  args[1] queue     str  whose tasks
  args[2] frozen_ms str  "" in production (server TIME); set only by tests

  Returns {waiting, waiting for their time}.
]]
register("size", {"no-writes"}, function(keys, args)
  local ctx, queue, frozen_ms = {prefix = keys[1], memo = {}, result = {}}, args[1], args[2]

  if Queues.has_ended(ctx, queue, Clock.server_now(frozen_ms)) then return {0, 0} end
  local waiting = tonumber(redis.call("HGET", ctx.prefix .. Keys.WAITING, queue) or 0)
  return {waiting, redis.call("ZCARD", ctx.prefix .. Keys.SCHEDULED .. queue)}
end)
