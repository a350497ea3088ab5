--[[
  park_message: keep the message of a task that a gate refused until its limits open, unless they are open by
  now: nothing that ends between the refusal and this is missed. A copy that waited before takes its
  old place.

  KEYS[1]  prefix        str  what every key of the installation begins with

  ARGV[1]  lease_ms      int  how long a lease lives without a renewal
  ARGV[2]  key           str  of the tenant's tier limit; "" is a system task
  ARGV[3]  tenant_key    str  of the tenant's record, without the prefix
  ARGV[4]  tier          str  the tenant's tier as the caller knows it
  ARGV[5]  concurrency   str  that tier's, as the caller knows it: an integer, "unlimited", or ""
  ARGV[6]  default_tier  str  for a tier that is not known
  ARGV[7]  default_limit str  of the default tier, an integer or "unlimited"
  ARGV[8]  tier_waits    str  "1" where a task over its tier's limit waits here
  ARGV[9]  words         str  the limits beside the tier's, or ""
  ARGV[10] tag           str  what all copies of the message have in common
  ARGV[11] serial        str  which copy was refused
  ARGV[12] next_serial   str  one that is never published: it stands for the message here
  ARGV[13] keep_ms       int  how long the memory of copies is kept
  ARGV[14] expires_ms    str  server time from which it does not start any more, or ""
  ARGV[15] message       str  as it is to be published again
  ARGV[16] broker        str  that the message came from; "" is any
  ARGV[17] frozen_ms     str  "" in production (server TIME); set only by tests

  Returns code.
    1 PARKED   0 ASK_AGAIN   -2 SUPERSEDED   -3 ELSEWHERE
]]
--- @include "tick"
--- @include "copies"
--- @include "gate_kept"
local prefix, lease_ms = KEYS[1], tonumber(ARGV[1])
local key, tenant_key, tier, concurrency = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local default_tier, default_limit, tier_waits, words = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local tag, serial, next_serial, keep_ms = ARGV[10], ARGV[11], ARGV[12], tonumber(ARGV[13])
local expires_ms, message, broker, frozen_ms = ARGV[14], ARGV[15], ARGV[16], ARGV[17]

local logical, now, _, said = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {logical = logical, now = now, enforcement = "on", steered = said.steered,
  tier_waits = tier_waits == "1", default_tier = default_tier, default_limit = default_limit}
local copy = prefix .. "copy:" .. tag
local gone, memory = superseded(copy, tag, serial)
local seq = memory.seq
if gone then return -2 end
if not is_of_broker(said, broker) then return -3 end

local task = {key = key, tenant_key = tenant_key, tier = tier, concurrency = concurrency}
local limits = limits_now(prefix, words, rules)
-- Who waited before asks for what there is, a newcomer for what nobody was promised.
rules.ahead = said.parked and not seq
local at, closed_ms, others = kept_by(prefix, task, limits, rules)
if others then return 0 end
if not at and rules.ahead then
  local behind = queue_of_gate(prefix, key, limits)
  at = behind and (behind.name or behind.key)
end
if not at then return 0 end

seq = seq or whole(redis.call("INCR", prefix .. "sequence"))
copy_parked(prefix, tag, next_serial, next_serial, seq, memory.told, keep_ms)
leave_gate(prefix, key, tag, parked_places(key, words))
redis.call("HSET", prefix .. "clock", "parked", broker ~= "" and broker or said.parked or 1)
redis.call("HSET", prefix .. "gate_tasks", tag, table.concat(
  {seq, expires_ms, key, tenant_key, tier, concurrency, words, memory.told}, " ") .. "\n" .. message)
if expires_ms ~= "" then redis.call("ZADD", prefix .. "gate_expires", expires_ms, tag) end
wait_at(prefix, {key = key, seq = seq}, tag, at, logical + math.min(closed_ms, LOOK_AT_LIMIT_MS))
ring_gate(prefix)
return 1
