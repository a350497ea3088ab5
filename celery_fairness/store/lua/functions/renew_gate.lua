--[[
  renew_gate: keep leases of a gate, named one by one, and say which are missing.

  A lease that had ended but was not yet cleared away is kept: its task still runs. With an empty
  list it only moves the clock, which every worker does at least once in a third of a lease.

  In another epoch than the caller knows, a lease that is missing is entered again: Redis lost its
  memory, or another server has taken it over (clock.lua).

  keys[1]  prefix    str   what every key of the installation begins with

  args[1]  lease_ms  int   how long a lease lives without a renewal
  args[2]  epoch     str   the epoch the caller knows, or ""; in another one what is missing is
                           entered again
  args[3]  frozen_ms str   "" in production (server TIME); set only by tests
  args[4+] leases    str   pairs: lease, the key that it counts in

  Returns {epoch, gone, ...}: the epoch (ms), then the positions (from 1) of leases that
  are gone, or were before they were entered again.
]]
register("renew_gate", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1]}
  local ends, lost, answer = Leases.begin_renewal(ctx, args)
  for index = 4, #args, 2 do
    local lease, leases = args[index], ctx.prefix .. "leases:" .. args[index + 1]
    local counts = redis.call("ZSCORE", leases, lease)
    if not counts then answer[#answer + 1] = (index - 2) / 2 end
    if counts or lost then
      redis.call("ZADD", leases, ends, lease)
      redis.call("PEXPIRE", leases, Leases.KEEP_LEASES_MS)
    end
  end
  -- What is known of one worker alone is looked for again (worker_limit.lua).
  if lost and #answer > 1 then redis.call("HINCRBY", ctx.prefix .. "clock", "entered", 1) end
  return answer
end)
