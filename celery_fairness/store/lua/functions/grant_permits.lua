--[[
  grant_permits: grant permits of a key to partitions (grants.lua). It runs in the home of the key.

  args[1-5] settings   any  of the worker (Tenants.rules_of)
  args[6]  frozen_ms   str  "" in production (server TIME); set only by tests
  args[7]  wanted      str  JSON with these fields:
             key         the key
             partitions  how many partitions the installation has
             counts      the field of the answer after which all of them were requested, absent for other reports
             reports     the answers of request_permits, each with the number of its `partition`. Those of all partitions together
                         are a count

  Returns JSON:
  - home      the epoch of this server's memory
  - answers   for each report, {partition, number, n, added, owed, turn_ms}, with what LotGrants.answer adds. If `added` is -1, the report is too old. `n` is
              how many permits the partition has with these, and `owed` how many of them it owes after turn_ms
  - visits    partitions to which the caller goes next, may be absent
  - counts    a number if the caller counts the permits of all partitions, because this server may lack what they have
  - quiet_ms  for how long the home adds nothing without a count, may be absent
  - most      the concurrency of the key
  - free      how many permits no partition has
  - new, left queues whose bells the caller rings (rings.lua), may be absent
]]
-- One call ends this many pauses and overrides whose time has come.
local ENDED_AT_MOST = 16

register("grant_permits", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1], memo = {}, result = {}}
  local rules, _, epoch = Tenants.rules_of(ctx, args, 1, args[6])
  epoch = Clock.meet_server(ctx, epoch, rules.now)
  -- An override that has ended is a change of numbers.
  if rules.has_overrides then Wake.end_changes(ctx, rules, ENDED_AT_MOST) end
  local answer = Grants.grant(ctx, cjson.decode(args[7]), rules, epoch)
  Rings.add_bells(ctx, answer)
  return cjson.encode(answer)
end)
