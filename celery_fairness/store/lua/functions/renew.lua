--[[
  renew: keep leases, named one by one, and return which of them are missing.

  A lease that had ended but was not yet cleared away is kept, because its task still runs. With an empty list the
  call only moves the clock. Every worker makes it at least once in a third of a lease.

  If the epoch is another than the caller's, a missing lease is entered again. It then counts for its tenant's
  limit and ends by itself, because only its worker has its task. The epoch changes when Redis lost its memory, and
  when another server has taken the memory over (clock.lua).

  keys[1]  prefix    str  what every key of the installation begins with

  args[1]  lease_ms  int  how long a lease lives without a renewal
  args[2]  epoch     str  the epoch of the caller, or ""
  args[3]  frozen_ms str  "" in production (server TIME); set only by tests
  args[4+] held      str  pairs: the lease and its keys, with commas

  Returns {epoch, gone, ...}. The epoch is in ms. After it come the positions (from 1) of the leases that are gone,
  or that were gone before this call entered them again.
]]
register("renew", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1]}
  local logical_end, lost, answer = Leases.begin_renewal(ctx, args)
  for index = 4, #args, 2 do
    local held, keys = args[index], args[index + 1]
    local runs = redis.call("ZSCORE", ctx.prefix .. "ends", held)
    local counts = runs
    if not counts then
      for key in string.gmatch(keys, "[^,]+") do
        counts = counts or redis.call("ZSCORE", ctx.prefix .. "leases:" .. key, held)
      end
    end
    if runs then redis.call("ZADD", ctx.prefix .. "ends", logical_end, held) end
    if not counts then answer[#answer + 1] = (index - 2) / 2 end
    if counts or lost then
      -- The lost memory had the note that a task had more than one limit.
      if not runs and string.find(keys, ",", 1, true) then
        redis.call("HSET", ctx.prefix .. "clock", "limited", 1)
      end
      for key in string.gmatch(keys, "[^,]+") do
        local leases = ctx.prefix .. "leases:" .. key
        if not runs then
          redis.call("ZADD", leases, logical_end, held)
          -- This lease has no row in `running`. After this time, a call clears it away (leases.lua).
          redis.call("ZADD", ctx.prefix .. "ends", logical_end, "  " .. key)
          Rates.known_until(ctx, key, logical_end)
        end
        redis.call("PEXPIRE", leases, Leases.KEEP_LEASES_MS)
      end
    end
  end
  return answer
end)
