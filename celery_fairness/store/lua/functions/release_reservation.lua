--[[
  release_reservation: a promoted task ended before it came to a gate, so no start is reserved for it any more.

  The tasks that wait for these starts are looked at again. A second call is harmless.

  keys[1]  prefix     str  what every key of the installation begins with

  args[1]  lease_ms   int  how long a lease lives without a renewal
  args[2]  frozen_ms  str  "" in production (server TIME); set only by tests
  args[3]  tag        str  what all copies of the message have in common
  args[4]  keys       str  of the task, with commas between them

  Returns how many starts were reserved.
]]
register("release_reservation", {"allow-oom"}, function(keys, args)
  local ctx, lease_ms, frozen_ms, tag = {prefix = keys[1]}, tonumber(args[1]), args[2], args[3]

  local logical, _, _, said = Clock.read_clock(ctx, lease_ms, frozen_ms)
  local released = 0
  for key in string.gmatch(args[4], "[^,]+") do
    released = released + redis.call("ZREM", ctx.prefix .. "gate_promised:" .. key, tag)
  end
  redis.call("ZREM", ctx.prefix .. "gate_promoted", tag)
  if released > 0 and said.parked then Parked.look_at_freed(ctx, {args[4]}, {logical = logical}) end
  return released
end)
