--[[
  remove: take a waiting task out of its queue. Another broker has it now.

  A claim may have moved the task into its lane since `scheduled`, and then it leaves the lane. A task that runs
  stays as it is.

  args[1]  tag     str  of the task

  Returns 1 if the task waited, otherwise 0.
]]
register("remove", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1]}
  ctx.ranked = Clock.ranked(ctx)

  return Settle.withdraw(ctx, args[1]) and 1 or 0
end)
