--[[
  epoch: the epoch of the memory. A process that connects to its broker asks for it, before it may claim anything. The
  function writes only the clock, so a user who may only put can call it.

  args[1]  lease_ms   int  how long a lease lives without a renewal
  args[2]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns the epoch in ms.
]]
register("epoch", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1], memo = {}, result = {}}
  local _, now, epoch = Clock.tick(ctx, tonumber(args[1]), args[2])
  return Rates.int_text(Clock.meet_server(ctx, epoch, now))
end)
