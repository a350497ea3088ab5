--[[
  renew_gate: keep leases of a gate, named one by one, and return which of them are missing.

  A lease that had ended but was not yet cleared away is kept, because its task still runs. With an empty list the
  call only moves the clock. Every worker makes it at least once in a third of a lease.

  If the epoch is another than the caller's, a missing lease is entered again. The epoch changes when Redis lost
  its memory, and when another server has taken it over (clock.lua).

  keys[1]  prefix    str   what every key of the installation begins with

  args[1]  lease_ms  int   how long a lease lives without a renewal
  args[2]  epoch     str   the epoch of the caller, or ""
  args[3]  frozen_ms str   "" in production (server TIME); set only by tests
  args[4+] leases    str   pairs: lease, the key that it counts in

  Returns {epoch, gone, ...}. The epoch is in ms. After it come the positions (from 1) of the leases that are gone,
  or that were gone before this call entered them again.
]]
register("renew_gate", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1]}
  local ends, lost, answer = Leases.begin_renewal(ctx, args)
  local known = {}
  for index = 4, #args, 2 do
    local lease, leases = args[index], ctx.prefix .. "leases:" .. args[index + 1]
    local counts = redis.call("ZSCORE", leases, lease)
    if not counts then answer[#answer + 1] = (index - 2) / 2 end
    if counts or lost then
      redis.call("ZADD", leases, ends, lease)
      redis.call("PEXPIRE", leases, Leases.KEEP_LEASES_MS)
      known[args[index + 1]] = true
    end
  end
  for key in pairs(known) do Rates.known_until(ctx, key, ends) end
  -- The gates look again for the leases of each worker (worker_limit.lua).
  if lost and #answer > 1 then redis.call("HINCRBY", ctx.prefix .. "clock", "entered", 1) end
  return answer
end)
