--[[
  admit: take every slot of a task whose message another broker holds, or none: that of its tenant's
  tier and those of its other limits. Limits count such tasks and claimed ones together.

  KEYS[1]  prefix        str  what every key of the installation begins with

  ARGV[1]  lease         str  unique per attempt; the same again is a no-op
  ARGV[2]  lease_ms      int  how long a lease lives without a renewal
  ARGV[3]  enforcement   str  "on", "observe" (count, refuse nothing) or "off"
  ARGV[4]  key           str  of the tenant's tier limit; "" is a system task
  ARGV[5]  tenant_key    str  of the tenant's record, without the prefix
  ARGV[6]  tier          str  the tenant's tier as the caller knows it
  ARGV[7]  concurrency   str  that tier's, as the caller knows it: an integer, "unlimited", or ""
  ARGV[8]  default_tier  str  for a tier that is not known
  ARGV[9]  default_limit str  of the default tier, an integer or "unlimited"
  ARGV[10] words         str  the limits beside the tier's, or ""
  ARGV[11] message       str  "" where the message says nothing of copies
  ARGV[12] serial        str  which copy asks
  ARGV[13] next_serial   str  which copy a refusal would publish
  ARGV[14] keep_ms       int  how long the memory of copies is kept, beside the wait
  ARGV[15] job           str  the task's id, name and queue as JSON, or ""
  ARGV[16] snooze_ms     int  the longest wait of a task that is tried again, where nobody knows better
  ARGV[17] broker        str  that has the message; "" is any. Of another it asks as a claim does
  ARGV[18] is_new        str  "1" where its limits are the newest of their keys (declared.lua), else ""
  ARGV[19] frozen_ms     str  "" in production (server TIME); set only by tests

  Returns {code, held, limit, retry_after_ms, version, tier, by, action}: the first six as acquire does,
  held and limit of the tier; by is the key of the limit that refused, "" the tier's; action "d", "r"
  or "w" is what shall become of the task; "t" that it starts and that its end is to be told (free.lua).
  Codes beside those of acquire: -3 it cools down, -4 its rate is reached, -5 its throttle spaces, -7
  others wait for it since longer, -8 its worker is full.
]]
--- @include "tick"
--- @include "entitlement"
--- @include "gate_counts"
--- @include "copies"
--- @include "gate_parked"
--- @include "gate_here"
--- @include "told"
--- @include "why_closed"
local prefix, lease, lease_ms, enforcement = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local key, tenant_key, known_tier, concurrency = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local default_tier, default_limit, words = ARGV[8], ARGV[9], ARGV[10]
local message, serial, next_serial = ARGV[11], ARGV[12], ARGV[13]
local keep_ms, job, snooze_ms = tonumber(ARGV[14]), ARGV[15], tonumber(ARGV[16])
local broker, is_new, frozen_ms = ARGV[17], ARGV[18], ARGV[19]

local FORGET_AT_MOST = 20 -- keys with starts of long ago
-- As the events call them.
local STRATEGIES = {full = "concurrency", cools = "cool-down", queue = "concurrency", here = "concurrency"}
local CODES = {full = 0, paused = -1, cools = -3, rate = -4, throttle = -5, queue = -7, here = -8}

local logical, now, _, said = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {logical = logical, now = now, enforcement = "on", weighs = true, look_ms = math.huge, of_gate = true,
  snooze_ms = snooze_ms, paced = said.paced, entered = said.entered, watched = said.watched}
local version = tonumber(redis.call("HGET", prefix .. "news", "version") or 0)
look_again(prefix, declare(prefix, words, is_new ~= ""))
local copy, limits = prefix .. "copy:" .. message, of_one_key(limits_now(prefix, words, rules))

local tier, limit, held = "", -1, 0
if key ~= "" then
  tier, limit = entitlement(prefix .. "tiers", prefix .. tenant_key, known_tier, concurrency,
    default_tier, default_limit, {})
  if said.steered then limit = tenant_limit(prefix, key, string.match(tenant_key, ":(.*)$"), limit, rules) end
  clear_ended(prefix, key, rules)
  held = redis.call("ZCOUNT", prefix .. "leases:" .. key, "(" .. whole(logical), "+inf")
end
for index = 1, #limits do clear_ended(prefix, limits[index].key, rules) end

-- Of one attempt all slots are taken in one call.
local held_until = redis.call("ZSCORE", prefix .. "leases:" .. (limits[1] and limits[1].key or key), lease)
local starts = {1, held, limit, -1, version, tier, "", said.watched and "t" or "w"}
if held_until and tonumber(held_until) > logical then return starts end
local gone, memory = superseded(copy, message, serial)
if gone then
  redis.call("HINCRBY", prefix .. "counts", "superseded", 1)
  return {-2, held, limit, -1, version, tier, "", "w"}
end

-- Who waited here has what it was promised; a newcomer does not take what others were.
if said.parked and memory.seq then forget_parked(prefix, key, message, parked_places(key, words)) end
rules.ahead = said.parked and not memory.seq and is_of_broker(said, broker)
local counts, events, closed = prefix .. "counts", prefix .. "events", nil
local taken = limit >= 0 and held + promised(prefix, key, rules) or held
local full = limit >= 0 and taken >= limit
local here = crowded_here(prefix, limits, lease, rules)
if enforcement ~= "off" then
  if full then
    count_refused(counts, prefix .. "exceeded", tier, at_tier(key, limit, taken))
    count_at_gate(prefix .. "minute:", now, "refused", tier, job)
  end
  closed = refusal(prefix, words, rules)
  if rules.ahead and enforcement == "on" and not full and not closed then
    local behind = queue_of_gate(prefix, key, limits)
    if behind then closed, behind.why, behind.longest_ms = behind, "queue", math.huge end
  end
  if not full then closed = closed or here end
  if closed then
    redis.call("HINCRBY", counts, "limited", 1)
    count_exceeded(prefix .. "exceeded", STRATEGIES[closed.why] or closed.why, closed.key)
  end
end

if enforcement == "on" and (full or closed) then
  local action = closed and closed.action or "w"
  local by_tier = full and action == "w"
  local retry_after_ms = closed and closed.longest_ms < math.huge and math.ceil(closed.longest_ms) or -1
  if action == "r" then
    redis.call("HINCRBY", counts, "rescheduled", 1)
    retry_after_ms = pace_ms(
      prefix, closed.says, closed.again_ms, closed.why == "full", rules, lease, 0)
  end
  if action == "d" then
    redis.call("HINCRBY", counts, "dropped", 1)
    if job ~= "" then append_event_of(events, "rate_limit.dropped", cjson.decode(job), "key", closed.by) end
    copy_admitted(copy, message, serial, memory, keep_ms)
  else
    if job ~= "" and memory.told == "" then
      -- What has no name is the tier's.
      local at = (by_tier or not closed.name) and at_tier(key, limit, taken) or why_closed(prefix, closed, rules)
      memory.told = tell_exceeded(events, cjson.decode(job), at)
    end
    copy_refused(copy, message, serial, next_serial, memory, keep_ms + math.max(0, retry_after_ms))
  end
  if by_tier then
    if limit > 0 then note_rejected(prefix .. "freed:" .. key, keep_ms) end
    -- One with other limits waits its snooze, whenever a slot may be free.
    local again_ms = words == "" and limit > 0 and first_end_ms(prefix, key, logical) or -1
    return {limit == 0 and -1 or 0, held, limit, again_ms, version, tier, "", action}
  end
  return {CODES[closed.why], held, limit, retry_after_ms, version, tier, closed.by or closed.key, action}
end

tell_admitted(events, job, memory)
if said.watched then tell_gate_started(prefix, lease, job, key, logical) end
count_at_gate(prefix .. "minute:", now, "started", tier, job)
copy_admitted(copy, message, serial, memory, keep_ms)
if key ~= "" then
  take_slot(prefix, key, lease, logical + lease_ms)
  starts[2] = held + 1
end
for index = 1, #limits do
  if limits[index].key ~= key then take_slot(prefix, limits[index].key, lease, logical + lease_ms) end
  count_start(prefix, limits[index], logical)
  begin_limit(prefix, limits[index], lease, rules)
end
forget_idle(prefix, logical)
forget_cooled(prefix, logical, FORGET_AT_MOST)
if enforcement == "observe" and (full or closed) then starts[1] = 2 end
return starts
