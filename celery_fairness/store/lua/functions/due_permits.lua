--[[
  due_permits: do the looks whose time has come (wake.lua), and return the keys of which the caller requests permits now
  (permits.lua). A claim of a partition does this too. A worker whose places are all in use claims nothing, so it calls this
  function at least once in a third of a lease.

  args[1-5] settings   any  of the worker (Tenants.rules_of)
  args[6]  frozen_ms   str  "" in production (server TIME); set only by tests
  args[7+] keys        str  those of running tasks of the caller

  Returns JSON:
  - requests   the keys, may be absent
  - new, left  queues whose bells the caller rings (rings.lua), may be absent
]]
-- One call looks at this many keys.
local LOOKS_AT_MOST = 64

register("due_permits", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1], memo = {}, result = {}}
  local rules = Tenants.rules_of(ctx, args, 1, args[6])
  Wake.check_limits(ctx, rules, LOOKS_AT_MOST)
  Permits.look_at_held(ctx, args, 7, rules)
  local answer = {requests = ctx.result.requests}
  Rings.add_bells(ctx, answer)
  return cjson.encode(answer)
end)
