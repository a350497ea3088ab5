--[[
  used: a body reports how many units of a rate it has used, in place of those that its start has counted.

  Fewer units are free at once for other tasks. More units may take the window above its rate, and later tasks wait for
  them. A second report of the same number changes nothing.

  args[1-5] settings      any  of the worker (Tenants.rules_of)
  args[6]  frozen_ms      str  "" in production (server TIME); set only by tests
  args[7]  lease          str  of the task
  args[8]  key            str  of one of its limits
  args[9]  units          int  that it has used, from 0

  Returns a code.
    1 COUNTED   0 ENDED   -1 OTHER_KEY
]]
register("used", {"allow-oom"}, function(keys, args)
  local ctx, lease, key, units = {prefix = keys[1], memo = {}, result = {}}, args[7], args[8], tonumber(args[9])
  local rules = Tenants.rules_of(ctx, args, 1, args[6])
  local row, field = Tasks.read_running(ctx, lease)
  if not row then row, field = Tasks.read_held(ctx, lease), lease end
  if not row or Promotions.is_promotion(row) then return 0 end
  if not string.find("," .. row.keys .. ",", "," .. key .. ",", 1, true) then return -1 end
  row.amounts = row.amounts or {}
  local limit = Numbers.set({}, row.amounts[key] or "")
  local more = units - (limit.units or 1)
  if more == 0 then return 1 end
  limit.units = units
  row.amounts[key] = Numbers.amounts_of(limit)
  Tasks.write_running(ctx, field, row)
  Rates.correct(ctx, key, tonumber(string.match(row.since, "^@(%d+)")), more, rules)
  if more < 0 then Wake.wake_waiters(ctx, key, rules) end
  return 1
end)
