--[[
  cancel: take waiting tasks out of a queue for good.

  The tasks wait in a lane or until their time. A worker writes that they were revoked. A task that runs, or
  that is gone, stays as it is.

  keys[1]  prefix     str  what every key of the installation begins with

  args[1]  queue      str  where they wait
  args[2]  lease_ms   int  how long a lease lives without a renewal
  args[3]  frozen_ms  str  "" in production (server TIME); set only by tests
  args[4+] record     str  each as it was read where it waits

  Returns for each task 1 if this call or an earlier one cancelled it, otherwise 0.
]]
-- A task that no worker held has this owner.
local NOBODY = "-"

register("cancel", {"allow-oom"}, function(keys, args)
  local ctx, queue, lease_ms, frozen_ms = {prefix = keys[1]}, args[1], tonumber(args[2]), args[3]

  local logical, _, _, said = Clock.tick(ctx, lease_ms, frozen_ms)
  ctx.ranked = said.ranked

  local answer = {}
  for index = 4, #args do
    local task, message = Tasks.read_record(args[index])
    local gone = Lanes.remove_waiting(ctx, queue, task, args[index])
    local row = Tasks.write_running(NOBODY, "cancelled", queue, args[index])
    if gone then
      redis.call("SREM", ctx.prefix .. "known", task.tag)
      redis.call("ZREM", ctx.prefix .. "expires:" .. queue, task.tag)
      redis.call("HINCRBY", ctx.prefix .. "counts", "cancelled", 1)
      Events.write_event_of(ctx, "fairness.cancelled", queue, task, message)
      Settle.leave_outcome(ctx, {logical = logical}, row)
    else
      -- A caller sends the call again if its answer was lost.
      gone = redis.call("ZSCORE", ctx.prefix .. "outcomes", row)
    end
    answer[#answer + 1] = gone and 1 or 0
  end
  return answer
end)
