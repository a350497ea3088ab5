--[[
  purge: forget waiting tasks of a queue. Tasks that run stay. The caller repeats the call until it returns 0.

  args[1] queue  str  whose tasks

  Returns how many were forgotten by this call.
]]
register("purge", {"allow-oom"}, function(keys, args)
  local ctx, queue = {prefix = keys[1], memo = {}, result = {}}, args[1]
  Clock.read_context(ctx)

  return Lanes.forget_waiting(ctx, queue)
end)
