--[[
  begin: the body of a claimed task begins. The process that runs it calls this before the first line of the body.

  args[1]  lease          str  of the task
  args[2]  state          str  "begun" or "acked", or "taken" if the caller waits for the answer (settle.lua)
  args[3]  known_epoch    str  the epoch in which the caller holds the lease
  args[4]  frozen_ms      str  "" in production (server TIME); set only by tests

  Returns 0 if the lease has ended, so that a caller that waits does not begin. Otherwise it returns 1, or 2 if the
  lease has ended and the task was removed from its queue.

  A memory of another epoch does not know the leases that it never had, so it ends none.
]]
register("begin", {"allow-oom"}, function(keys, args)
  local ctx, lease, state = {prefix = keys[1], memo = {}, result = {}}, args[1], args[2]
  local noted, tag = Settle.note_begin(ctx, lease, state)
  if noted then return 1 end
  if Tasks.read_held(ctx, lease) then return 1 end
  local clock = redis.call("HMGET", ctx.prefix .. Keys.CLOCK, "epoch", "schema", "ranked", "several", "bursts")
  Clock.check_schema(clock[2])
  ctx.ranked, ctx.several, ctx.bursts = clock[3], clock[4], clock[5]
  local epoch = tonumber(clock[1])
  if not epoch or Clock.meet_server(ctx, epoch, Clock.server_now(args[4])) ~= tonumber(args[3]) then return 1 end
  return Settle.settle_other(ctx, {}, lease, state, tag)
end)
