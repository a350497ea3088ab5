--[[
  quarantine: move an entry that no function can read out of a plain list. The entry stays as it is.

  args[1] queue  str  whose plain list it is
  args[2] plain  str  the key of that list
  args[3] entry  str  what lies there

  Returns how many were moved. It returns 0 if another call has moved the entry.
]]
register("quarantine", {"allow-oom"}, function(keys, args)
  local ctx, queue, plain, entry = {prefix = keys[1], memo = {}, result = {}}, args[1], args[2], args[3]

  local moved = redis.call("LREM", plain, -1, entry)
  if moved > 0 then
    redis.call("RPUSH", ctx.prefix .. Keys.QUARANTINED .. queue, entry)
    redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "quarantined", moved)
  end
  return moved
end)
