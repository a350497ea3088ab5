--[[
  inspect: what a key holds now. Writes nothing.

  KEYS[1] clock         hash  logical, seen, epoch (ms)
  KEYS[2] leases        zset  lease id -> logical end (ms)
  KEYS[3] tiers         hash  tier -> its numbers as JSON
  KEYS[4] tenant        hash  tier, concurrency: news of this tenant
  KEYS[5] ends          zset  lease id -> logical end (ms) of leases of claimed tasks

  ARGV[1] lease_ms      int   how long a lease lives without a renewal
  ARGV[2] tier          str   the tenant's tier as the caller knows it
  ARGV[3] concurrency   str   that tier's, as the caller knows it: an integer, "unlimited", or ""
  ARGV[4] default_tier  str   for a tier that is not known
  ARGV[5] default_limit str   of the default tier, an integer or "unlimited"
  ARGV[6] frozen_ms     str   "" in production (server TIME); set only by tests

  Returns {held, limit, tier, id, ends_in_ms, ...}: the first hundred leases; limit -1 is unlimited.
]]
--- @include "clock"
--- @include "entitlement"
local clock, leases, tiers, tenant = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ends = KEYS[5]
local lease_ms, frozen_ms = tonumber(ARGV[1]), ARGV[6]

-- Leases that one answer shows.
local SHOW_AT_MOST = 100

local logical = read_clock(clock, lease_ms, frozen_ms)
local tier, limit = entitlement(tiers, tenant, ARGV[2], ARGV[3], ARGV[4], ARGV[5], {})
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
