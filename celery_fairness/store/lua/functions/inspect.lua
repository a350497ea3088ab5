--[[
  inspect: return what a key holds now. The function writes nothing.

  keys[1] prefix        str   what every key of the installation begins with

  args[1] key           str   of the limit
  args[2] tenant_key    str   of the tenant's record, without the prefix
  args[3] lease_ms      int   how long a lease lives without a renewal
  args[4] tier          str   the tenant's tier as the caller holds it
  args[5] concurrency   str   that tier's, as the caller holds it (an integer, "unlimited" or "")
  args[6] default_tier  str   for a tier that is not known
  args[7] default_limit str   of the default tier, an integer or "unlimited"
  args[8] frozen_ms     str   "" in production (server TIME); set only by tests

  Returns {held, limit, tier, id, ends_in_ms, ...}. The limit -1 is unlimited. The answer has the first hundred
  leases.
]]
-- One answer has at most this many leases.
local SHOW_AT_MOST = 100

register("inspect", {"no-writes"}, function(keys, args)
  local ctx, key, tenant_key, lease_ms, frozen_ms = {prefix = keys[1]}, args[1], args[2], tonumber(args[3]), args[8]
  local leases, ends = ctx.prefix .. "leases:" .. key, ctx.prefix .. "ends"

  local logical = Clock.read_clock(ctx, lease_ms, frozen_ms)
  local tier, limit = Config.entitlement(
    ctx.prefix .. "tiers", ctx.prefix .. tenant_key, args[4], args[5], args[6], args[7], {})
  local alive = string.format("(%.0f", logical)
  local answer = {redis.call("ZCOUNT", leases, alive, "+inf"), limit, tier}
  local shown = redis.call(
    "ZRANGEBYSCORE", leases, alive, "+inf", "WITHSCORES", "LIMIT", 0, SHOW_AT_MOST)
  for index = 1, #shown, 2 do
    local ends_at = tonumber(shown[index + 1])
    -- A claimed task's lease counts without an end; the lease itself has one.
    if ends_at == math.huge then
      ends_at = math.max(logical, tonumber(redis.call("ZSCORE", ends, shown[index]) or logical))
    end
    answer[#answer + 1] = shown[index]
    answer[#answer + 1] = ends_at - logical
  end
  return answer
end)
