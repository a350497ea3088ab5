--[[
  cancel: take waiting tasks out of their queues for good.

  The tasks wait in a lane or until their time. A worker writes that they were revoked. A task that runs, or
  that is gone, stays as it is.

  args[1]  lease_ms   int  how long a lease lives without a renewal
  args[2]  frozen_ms  str  "" in production (server TIME); set only by tests
  args[3+] tag        str  of each task

  Returns for each task 1 if this call or an earlier one cancelled it, otherwise 0.
]]
register("cancel", {"allow-oom"}, function(keys, args)
  local ctx, lease_ms, frozen_ms = {prefix = keys[1], memo = {}, result = {}}, tonumber(args[1]), args[2]

  local logical, _, _, flags = Clock.tick(ctx, lease_ms, frozen_ms)
  ctx.ranked, ctx.unique = flags.ranked, flags.unique

  local answer = {}
  for index = 3, #args do
    local task = Tasks.read(ctx, args[index])
    local gone = task and Lanes.remove_waiting(ctx, task)
    if gone then
      redis.call("ZREM", ctx.prefix .. Keys.EXPIRES .. task.queue, task.tag)
      redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "cancelled", 1)
      Events.write_event_of(ctx, "fairness.cancelled", task)
      Settle.leave_outcome(ctx, {logical = logical}, task, "cancelled", Settle.NOBODY)
    elseif task then
      -- A caller sends the call again if its answer was lost.
      gone = Settle.outcome_of(task) == "cancelled"
    end
    answer[#answer + 1] = gone and 1 or 0
  end
  return answer
end)
