--[[
  accept_permits: accept the answer of a home to the last request (permits.lua). It runs in the partition of that request.

  args[1-5] settings   any  of the worker (Tenants.rules_of)
  args[6]  frozen_ms   str  "" in production (server TIME); set only by tests
  args[7]  key         str  the key
  args[8]  answer      str  JSON: the server of the report (`run`), the `home` of the grant, and its answer

  Returns JSON:
  - accepted   whether the answer was accepted
  - new, left  queues whose bells the caller rings (rings.lua), may be absent
]]
register("accept_permits", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1], memo = {}, result = {}}
  local rules = Tenants.rules_of(ctx, args, 1, args[6])
  local answer = {accepted = Permits.accept(ctx, args[7], cjson.decode(args[8]), rules)}
  Rings.add_bells(ctx, answer)
  return cjson.encode(answer)
end)
