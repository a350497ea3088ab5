--[[
  free: end leases of a gate, or starts that were promised to a task that ended before it came to a gate.

  The tasks that wait for these slots are looked at again. A second call for the same lease is harmless, and so is
  a call for a lease that is gone.

  keys[1]  prefix    str  what every key of the installation begins with

  args[1]  what      str  "leases", "promises", or "died" if the processes died that should end the leases
  args[2]  lease_ms  int  how long a lease lives without a renewal
  args[3]  frozen_ms str  "" in production (server TIME); set only by tests
  args[4+] pairs     str  a lease, or the tag of a task, and a key of it; one pair for each slot

  Returns how many were held.
]]
register("free", {"allow-oom"}, function(keys, args)
  local ctx, what, lease_ms, frozen_ms = {prefix = keys[1]}, args[1], tonumber(args[2]), args[3]

  local logical, _, _, said = Clock.read_clock(ctx, lease_ms, frozen_ms)
  local rules = {logical = logical}
  local freed, wakes, limits = 0, false, {}
  for index = 4, #args - 1, 2 do
    local holder, key, held = args[index], args[index + 1], nil
    if what ~= "promises" then
      held = redis.call("ZREM", ctx.prefix .. "leases:" .. key, holder)
      if said.watched then Events.tell_gate_ended(ctx, holder, what == "died" and what or "done", logical) end
      if string.sub(key, 1, 7) ~= "tenant:" then
        if said.paced then Backoff.note_end(ctx, holder, key, rules) end
        limits[#limits + 1] = key
      end
    else
      held = redis.call("ZREM", ctx.prefix .. "gate_promised:" .. key, holder)
      redis.call("ZREM", ctx.prefix .. "gate_promoted", holder)
    end
    freed = freed + held
    if held == 1 and what ~= "promises" and string.sub(key, 1, 7) == "tenant:" then
      Leases.note_freed(ctx.prefix .. "freed:" .. key)
    end
    if said.parked and held == 1 then
      wakes = redis.call("ZADD", ctx.prefix .. "gate_looks", "XX", "LT", "CH", Rates.whole(logical), key) == 1 or wakes
    end
  end
  Rates.stay_known(ctx, limits, logical)
  if wakes then Parked.ring_gate(ctx) end
  return freed
end)
