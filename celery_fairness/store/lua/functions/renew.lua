--[[
  renew: keep leases, named one by one, and say which are missing.

  A lease that had ended but was not yet cleared away is kept: its task still runs. With an empty
  list it only moves the clock, which every worker does at least once in a third of a lease.

  In another epoch than the caller knows, a lease that is missing is entered again as one that counts
  for its tenant's limit and ends by itself: its task is known to its worker alone. So it is where
  Redis lost its memory, or where another server has taken the memory over (clock.lua).

  keys[1]  prefix    str  what every key of the installation begins with

  args[1]  lease_ms  int  how long a lease lives without a renewal
  args[2]  epoch     str  the epoch the caller knows, or ""; in another one what is missing is
                          entered again
  args[3]  frozen_ms str  "" in production (server TIME); set only by tests
  args[4+] held      str  pairs: the lease; its keys, with commas

  Returns {epoch, gone, ...}: the epoch (ms), then the positions (from 1) of leases that
  are gone, or were before they were entered again.
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
      -- It was lost with the memory that a task had more limits than one.
      if not runs and string.find(keys, ",", 1, true) then
        redis.call("HSET", ctx.prefix .. "clock", "limited", 1)
      end
      for key in string.gmatch(keys, "[^,]+") do
        local leases = ctx.prefix .. "leases:" .. key
        if not runs then
          redis.call("ZADD", leases, logical_end, held)
          -- Nobody else knows of it: whoever looks then takes it away (leases.lua).
          redis.call("ZADD", ctx.prefix .. "ends", logical_end, "  " .. key)
        end
        redis.call("PEXPIRE", leases, Leases.KEEP_LEASES_MS)
      end
    end
  end
  return answer
end)
