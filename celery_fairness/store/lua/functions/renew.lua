--[[
  renew: keep leases, named one by one, and return which of them are missing.

  A lease that had ended but was not yet cleared away is kept, because its task still runs. With an empty list the
  call only moves the clock. Every worker makes it at least once in a third of a lease.

  If the epoch is another than the caller's, a missing lease is entered again. It then counts for its keys and ends
  by itself, because only its worker has its task. The epoch changes when Redis lost its memory, and when another
  server has taken the memory over (clock.lua).

  The call also ends leases that nobody renewed, and forgets what no key uses any more.

  args[1-5] settings      any  of the worker (Tenants.rules_of)
  args[6]  epoch          str  the epoch of the caller, or ""
  args[7]  frozen_ms      str  "" in production (server TIME); set only by tests
  args[8+] held           str  pairs: the lease and its keys, with commas, and with their amounts (tasks.lua)

  Returns {epoch, gone, ...}. The epoch is in ms. After it come the positions (from 1) of the leases that are gone,
  or that were gone before this call entered them again.
]]
-- One call deletes at most this many pauses and overrides, and as many cool-downs.
local FORGET_AT_MOST = 64

register("renew", {"allow-oom"}, function(keys, args)
  local ctx, known_epoch = {prefix = keys[1], memo = {}, result = {}}, args[6]
  local rules, _, epoch = Tenants.rules_of(ctx, args, 1, args[7])
  epoch = Clock.meet_server(ctx, epoch, rules.now)
  local lost = known_epoch ~= "" and tonumber(known_epoch) ~= epoch
  local ends_at, answer = Rates.int_text(rules.logical + rules.lease_ms), {Rates.int_text(epoch)}
  for index = 8, #args, 2 do
    local lease, its_keys = args[index], args[index + 1]
    if redis.call("ZSCORE", ctx.prefix .. Keys.ENDS, lease) then
      redis.call("ZADD", ctx.prefix .. Keys.ENDS, ends_at, lease)
    else
      answer[#answer + 1] = (index - 6) / 2
      if lost then
        local its, amounts = Tasks.keys_without(its_keys)
        Leases.hold(ctx, {lease = lease, keys = its, amounts = amounts, limits = "", task = Leases.UNKNOWN, ends_at = ends_at},
          rules)
      end
    end
  end
  Leases.expire(ctx, rules, Leases.ENDED_AT_MOST)
  if rules.has_overrides then Wake.end_changes(ctx, rules, FORGET_AT_MOST) end
  Rates.forget_idle(ctx, rules.logical)
  Config.forget_cooled(ctx, rules.logical, FORGET_AT_MOST)
  return answer
end)
