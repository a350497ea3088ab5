--[[
  unresolved: a process reports for which tenants the tier resolver failed since its last report.

  A process reports at most once a second. The counter has every failure. The field `unresolved` of the clock has
  the tenants of the newest failures, so a resolver that fails for all tenants takes no more memory than one that
  fails for a few. A row is `KEY~LAST_MS~FAILURES~ERROR`, and the newest row is first.

  args[1]  failed     int  failures since the last report, also those without a row
  args[2]  frozen_ms  str  "" in production (server TIME); set only by tests
  args[3+] rows            four for each tenant: the key of its tier limit, failures, the type of the last error,
                           and how many ms ago that was

  Returns the config version, which the caller reads once a second anyway.
]]
-- The field has at most this many rows, and none whose last failure is older.
local TENANTS_AT_MOST = 100
local KEPT_MS = 86400000

register("unresolved", {"allow-oom"}, function(keys, args)
  local ctx, failed, now = {prefix = keys[1], memo = {}, result = {}}, tonumber(args[1]), Clock.server_now(args[2])
  local clock = ctx.prefix .. Keys.CLOCK
  local version, rows = unpack(redis.call("HMGET", clock, "version", "unresolved"))

  local found, reported = {}, {}
  for first = 3, #args, 4 do
    local tenant, count, kind, age = unpack(args, first, first + 3)
    reported[tenant] = {tenant = tenant, last = now - age, failures = tonumber(count), kind = kind}
    found[#found + 1] = reported[tenant]
  end
  for tenant, last, before, kind in string.gmatch(rows or "", "(%S+)~(%d+)~(%d+)~(%S+)") do
    local row = reported[tenant]
    last, before = tonumber(last), tonumber(before)
    if not row then
      found[#found + 1] = {tenant = tenant, last = last, failures = before, kind = kind}
    else
      row.failures = row.failures + before
      if last > row.last then row.last, row.kind = last, kind end
    end
  end
  table.sort(found, function(a, b) return a.last > b.last or (a.last == b.last and a.tenant < b.tenant) end)
  local lines = {}
  for at = 1, math.min(#found, TENANTS_AT_MOST) do
    local row = found[at]
    if now - row.last > KEPT_MS then break end
    lines[at] = string.format("%s~%.0f~%.0f~%s", row.tenant, row.last, row.failures, row.kind)
  end

  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "unresolved", failed)
  redis.call("HSET", clock, "unresolved", table.concat(lines, " "))
  return tonumber(version or 0)
end)
