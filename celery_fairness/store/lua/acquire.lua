--[[
  acquire: take one lease of a tenant's tier limit, or say why not.

  KEYS[1] clock        hash    logical, seen, epoch (ms)
  KEYS[2] leases       zset    lease id -> logical time at which it ends (ms)
  KEYS[3] tiers        hash    tier -> its numbers as JSON
  KEYS[4] tenant       hash    tier, concurrency: news of this tenant
  KEYS[5] news         hash    version, source
  KEYS[6] counts       hash    counters, among them refused:{tier}
  KEYS[7] copy         hash    current, next, admitted: which copy of the message may run; told
  KEYS[8] events       stream  what happened
  KEYS[9] exceeded     hash    how often each key has refused
  KEYS[10] minute      hash    what was in one minute, whose number is put behind the name

  ARGV[1] lease_id     str   unique per attempt; the same id again is a no-op
  ARGV[2] lease_ms     int   how long a lease lives without a renewal
  ARGV[3] enforcement  str   "on", "observe" (count, refuse nothing) or "off"
  ARGV[4] tier         str   the tenant's tier as the caller knows it
  ARGV[5] concurrency  str   that tier's, as the caller knows it: an integer, "unlimited", or ""
  ARGV[6] default_tier str   for a tier that is not known
  ARGV[7] default_limit str  of the default tier, an integer or "unlimited"
  ARGV[8] message      str   "" where the message says nothing of copies
  ARGV[9] serial       str   which copy asks
  ARGV[10] next_serial str   which copy a refusal would publish
  ARGV[11] keep_ms     int   how long the memory of copies is kept
  ARGV[12] key         str   of the limit
  ARGV[13] job         str   the task's id, name and queue as JSON, or ""
  ARGV[14] frozen_ms   str   "" in production (server TIME); set only by tests

  Returns {code, held, limit, retry_after_ms, version, tier}; limit -1 is unlimited,
  retry_after_ms -1 unknown, held counts this lease.
    1 ADMITTED   2 ADMITTED_OVER_LIMIT   0 AT_CONCURRENCY_LIMIT   -1 PAUSED   -2 SUPERSEDED
    -6 STEERED
]]
--- @include "tick"
--- @include "entitlement"
--- @include "copies"
--- @include "gate_counts"
--- @include "told"
--- @include "freed"
local clock, leases, tiers, tenant = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local news, counts, copy, events = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local exceeded, minute = KEYS[9], KEYS[10]
local lease_id, lease_ms, enforcement = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local message, serial, next_serial = ARGV[8], ARGV[9], ARGV[10]
local keep_ms, key, job, frozen_ms = tonumber(ARGV[11]), ARGV[12], ARGV[13], ARGV[14]

-- A set of leases that nobody asks about goes by itself, much later than any outage.
local KEEP_LEASES_MS = 86400000
-- Ended leases that one call clears away; they do not count in any case.
local CLEAR_AT_MOST = 64

local logical, now, _, said = tick(clock, lease_ms, frozen_ms)
-- People have said something of some key, or watch what becomes of tasks: dispatch/admit.lua knows more.
if said.steered or said.watched then return {-6, 0, -1, -1, 0, ""} end
local version = tonumber(redis.call("HGET", news, "version") or 0)
local tier, limit = entitlement(tiers, tenant, ARGV[4], ARGV[5], ARGV[6], ARGV[7], {})

local held = redis.call("ZCARD", leases)
if held > 0 then
  local held_until = redis.call("ZSCORE", leases, lease_id)
  local ended = redis.call("ZRANGEBYSCORE", leases, "-inf", logical, "LIMIT", 0, CLEAR_AT_MOST)
  if #ended > 0 then
    redis.call("ZREM", leases, unpack(ended))
    note_freed(freed_of(leases))
  end
  held = redis.call("ZCOUNT", leases, string.format("(%.0f", logical), "+inf")
  if held_until and tonumber(held_until) > logical then
    return {1, held, limit, -1, version, tier}
  end
end

local gone, memory = superseded(copy, message, serial)
if gone then
  redis.call("HINCRBY", counts, "superseded", 1)
  return {-2, held, limit, -1, version, tier}
end

local over = limit >= 0 and held >= limit
if over and enforcement ~= "off" then
  count_refused(counts, exceeded, tier, at_tier(key, limit, held))
  count_at_gate(minute, now, "refused", tier, job)
end
if over and enforcement == "on" then
  if job ~= "" and memory.told == "" then
    memory.told = tell_exceeded(events, cjson.decode(job), at_tier(key, limit, held))
  end
  copy_refused(copy, message, serial, next_serial, memory, keep_ms)
  if limit == 0 then return {-1, held, limit, -1, version, tier} end
  note_rejected(freed_of(leases), keep_ms)
  local alive = string.format("(%.0f", logical)
  local first = redis.call(
    "ZRANGEBYSCORE", leases, alive, "+inf", "WITHSCORES", "LIMIT", 0, 1)
  -- Those of claims (score inf) end when their tasks do.
  local ends = tonumber(first[2])
  return {0, held, limit, ends == math.huge and -1 or ends - logical, version, tier}
end

tell_admitted(events, job, memory)
count_at_gate(minute, now, "started", tier, job)
copy_admitted(copy, message, serial, memory, keep_ms)
redis.call("ZADD", leases, string.format("%.0f", logical + lease_ms), lease_id)
redis.call("PEXPIRE", leases, KEEP_LEASES_MS)
local code = (over and enforcement == "observe") and 2 or 1
return {code, held + 1, limit, -1, version, tier}
