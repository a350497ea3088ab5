--[[
  settle: record the outcomes of tasks that hold leases (settle.lua), if no claim takes them along.

  args[1-5] settings      any  of the worker (Tenants.rules_of)
  args[6]  frozen_ms      str  "" in production (server TIME); set only by tests
  args[7+] ends           str  pairs of the lease and the outcome
             begun  the body runs          acked  and the message is acknowledged
             taken  as acked, if the lease has not ended: the task is not removed from its queue
             done   it ended               head   it waits again, in its place
             failed its body failed        tail   it waits again, last
             retried  as done, and its next attempt is another message
             died   its process died, which is as head until too often
             unreadable    its message cannot be read, so it becomes a dead letter

  An outcome has a "-" after it if the body has not begun. The starts of such a task do not count.

  Returns the codes of settle.lua, one for each.
]]
register("settle", {"allow-oom"}, function(keys, args)
  local ctx, frozen_ms = {prefix = keys[1], memo = {}, result = {}}, args[6]
  local rules, flags = Tenants.rules_of(ctx, args, 1, frozen_ms)

  local answer = {}
  for index = 7, #args, 2 do
    answer[#answer + 1] = Settle.settle(ctx, rules, args[index], args[index + 1])
  end
  Start.keep_run_times(ctx, flags.run_times)
  Stats.write_minute(ctx, rules)
  Leases.open_freed(ctx, rules)
  return answer
end)
