--[[
  unresolved: a process reports for which tenants the tier resolver failed since its last report.

  A process reports at most once a second. The counter has every failure. The field `unresolved` of the clock has
  the tenants of the newest failures, so a resolver that fails for all tenants takes no more memory than one that
  fails for a few. A row is `KEY~LAST_MS~FAILURES~ERROR`, and the newest row is first.

  args[1]  failed     int  failures since the last report, also those without a row
  args[2]  frozen_ms  str  "" in production (server TIME); set only by tests
  args[3+] rows            three for each tenant: the key of its tier limit, failures, and the type of the error

  Returns the config version, which the caller reads once a second anyway.
]]
-- The field has at most this many rows, and none whose last failure is older.
local TENANTS_AT_MOST = 100
local KEPT_MS = 86400000

register("unresolved", {"allow-oom"}, function(keys, args)
  local ctx, failed, now = {prefix = keys[1]}, tonumber(args[1]), Clock.server_now(args[2])
  local clock = ctx.prefix .. Keys.CLOCK
  local version, rows = unpack(redis.call("HMGET", clock, "version", "unresolved"))

  local found, failures, kept = {}, {}, {}
  for first = 3, #args, 3 do
    local tenant = args[first]
    found[#found + 1] = tenant
    failures[tenant] = tonumber(args[first + 1])
  end
  for tenant, last, before, kind in string.gmatch(rows or "", "(%S+)~(%d+)~(%d+)~(%S+)") do
    if failures[tenant] then
      failures[tenant] = failures[tenant] + before
    elseif now - last <= KEPT_MS then
      kept[#kept + 1] = string.format("%s~%s~%s~%s", tenant, last, before, kind)
    end
  end
  local lines = {}
  for at, tenant in ipairs(found) do
    lines[at] = string.format("%s~%.0f~%.0f~%s", tenant, now, failures[tenant], args[3 * at + 2])
  end
  for at = 1, math.min(#kept, TENANTS_AT_MOST - #lines) do lines[#lines + 1] = kept[at] end

  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "unresolved", failed)
  redis.call("HSET", clock, "unresolved", table.concat(lines, " "))
  return tonumber(version or 0)
end)
