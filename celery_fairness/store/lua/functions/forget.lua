--[[
  forget: delete old starts of keys, and cool-downs, pauses and overrides that are over.

  The call is for keys that no caller uses any more. Claims delete these things by themselves. For a gate, the
  process that renews its leases calls this function.

  keys[1]  prefix     str  what every key of the installation begins with

  args[1]  lease_ms   int  how long a lease lives without a renewal
  args[2]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns nothing.
]]
-- One call deletes at most this many pauses, as many overrides and as many cool-downs.
local FORGET_AT_MOST = 64

register("forget", {"allow-oom"}, function(keys, args)
  local ctx, lease_ms, frozen_ms = {prefix = keys[1]}, tonumber(args[1]), args[2]

  local logical, now, _, said = Clock.read_clock(ctx, lease_ms, frozen_ms)
  if said.steered then
    Wake.end_steering(ctx, {logical = logical, now = now, enforcement = "on"}, FORGET_AT_MOST)
  end
  Rates.forget_idle(ctx, logical)
  Config.forget_cooled(ctx, logical, FORGET_AT_MOST)
end)
