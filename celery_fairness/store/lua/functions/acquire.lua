--[[
  acquire: take every slot of a task whose message another broker holds, or none of them.

  The slots are those of its tenant's tier and of its other limits. A limit counts these tasks and claimed tasks
  together.

  keys[1]  prefix        str  what every key of the installation begins with

  args[1]  lease         str  unique per attempt; a second call with the same lease changes nothing
  args[2]  lease_ms      int  how long a lease lives without a renewal
  args[3]  enforcement   str  "on", "observe" (count, reject nothing) or "off"
  args[4]  key           str  of the tenant's tier limit; "" is a system task
  args[5]  tenant_key    str  of the tenant's record, without the prefix
  args[6]  tier          str  the tenant's tier as the caller holds it
  args[7]  concurrency   str  that tier's, as the caller holds it (an integer, "unlimited" or "")
  args[8]  default_tier  str  for a tier that is not known
  args[9]  default_limit str  of the default tier, an integer or "unlimited"
  args[10] words         str  the limits beside the tier's, or ""
  args[11] message       str  whose copies they are; "" if the message carries no serial
  args[12] serial        str  of the copy that wants to start
  args[13] next_serial   str  of the copy that the caller publishes after a rejection
  args[14] keep_ms       int  how long the memory of copies is kept, beside the wait
  args[15] job           str  the task's id, name and queue as JSON, or ""
  args[16] snooze_ms     int  the longest wait of a task that is tried again, unless its limit opens later
  args[17] broker        str  that has the message; "" is any
  args[18] is_new        str  "1" if its limits are the newest of their keys (config.lua), otherwise ""
  args[19] tier_waits    str  "1" if a task that the tier rejects waits in Redis, otherwise ""
  args[20] frozen_ms     str  "" in production (server TIME); set only by tests

  A task waits behind the parked tasks of its own broker. It does not wait behind those of another broker.

  Returns {code, held, limit, retry_after_ms, version, tier, by, action}.
  - held and limit are those of the tier. If the task starts, held counts its lease too. The limit -1 is unlimited.
  - retry_after_ms is -1 if the time is unknown.
  - by is the key of the limit that rejects the task. It is "" for the tier's limit.
  - action "d" drops a rejected task, "r" reschedules it, and "w" lets it wait.
  - action "t" is for a task that starts, if the gate must report its end (free.lua). Other starts have "w".

    1 ADMITTED   2 ADMITTED_OVER_LIMIT   0 AT_CONCURRENCY_LIMIT   -1 PAUSED   -2 SUPERSEDED
    -3 COOLS_DOWN   -4 RATE   -5 THROTTLE   -7 OTHERS_WAIT   -8 WORKER_FULL
]]
local FORGET_AT_MOST = 20 -- cool-downs that are over, per call
-- The events use these names.
local STRATEGIES = {full = "concurrency", cools = "cool-down", queue = "concurrency", here = "concurrency"}
local CODES = {full = 0, paused = -1, cools = -3, rate = -4, throttle = -5, queue = -7, here = -8}

-- Judges a task by its tier's limit alone. No person has paused that limit or changed its numbers. A rejected task
-- does not wait here.
local function acquire_of_tier(ctx, args, logical, now)
  local lease_id, lease_ms, enforcement, key = args[1], tonumber(args[2]), args[3], args[4]
  local message, serial, next_serial, keep_ms, job = args[11], args[12], args[13], tonumber(args[14]), args[15]
  local leases, counts, copy = ctx.prefix .. "leases:" .. key, ctx.prefix .. "counts", ctx.prefix .. "copy:" .. message
  local events, exceeded, minute = ctx.prefix .. "events", ctx.prefix .. "exceeded", ctx.prefix .. "minute:"
  local version = tonumber(redis.call("HGET", ctx.prefix .. "news", "version") or 0)
  local tier, limit = Config.entitlement(
    ctx.prefix .. "tiers", ctx.prefix .. args[5], args[6], args[7], args[8], args[9], {})

  local held = redis.call("ZCARD", leases)
  if held > 0 then
    local held_until = redis.call("ZSCORE", leases, lease_id)
    local ended = redis.call("ZRANGEBYSCORE", leases, "-inf", logical, "LIMIT", 0, Leases.CLEAR_AT_MOST)
    if #ended > 0 then
      redis.call("ZREM", leases, unpack(ended))
      Leases.note_freed(Leases.freed_of(leases))
    end
    held = redis.call("ZCOUNT", leases, string.format("(%.0f", logical), "+inf")
    if held_until and tonumber(held_until) > logical then
      return {1, held, limit, -1, version, tier, "", "w"}
    end
  end

  local gone, memory = Copies.superseded(copy, message, serial)
  if gone then
    redis.call("HINCRBY", counts, "superseded", 1)
    return {-2, held, limit, -1, version, tier, "", "w"}
  end

  local over = limit >= 0 and held >= limit
  if over and enforcement ~= "off" then
    Stats.count_refused(counts, exceeded, tier, Events.at_tier(key, limit, held))
    Stats.count_at_gate(minute, now, "refused", tier, job)
  end
  if over and enforcement == "on" then
    if job ~= "" and memory.told == "" then
      memory.told = Events.tell_exceeded(events, cjson.decode(job), Events.at_tier(key, limit, held))
    end
    Copies.copy_refused(copy, message, serial, next_serial, memory, keep_ms)
    if limit == 0 then return {-1, held, limit, -1, version, tier, "", "w"} end
    Leases.note_rejected(Leases.freed_of(leases), keep_ms)
    local alive = string.format("(%.0f", logical)
    local first = redis.call(
      "ZRANGEBYSCORE", leases, alive, "+inf", "WITHSCORES", "LIMIT", 0, 1)
    -- A lease of a claim (score inf) ends when its task ends.
    local ends = tonumber(first[2])
    return {0, held, limit, ends == math.huge and -1 or ends - logical, version, tier, "", "w"}
  end

  Events.tell_admitted(events, job, memory)
  Stats.count_at_gate(minute, now, "started", tier, job)
  Copies.copy_admitted(copy, message, serial, memory, keep_ms)
  redis.call("ZADD", leases, string.format("%.0f", logical + lease_ms), lease_id)
  redis.call("PEXPIRE", leases, Leases.KEEP_LEASES_MS)
  Rates.known_until(ctx, key, logical + lease_ms)
  local code = (over and enforcement == "observe") and 2 or 1
  return {code, held + 1, limit, -1, version, tier, "", "w"}
end

register("acquire", {"allow-oom"}, function(keys, args)
  local ctx, lease, lease_ms, enforcement = {prefix = keys[1]}, args[1], tonumber(args[2]), args[3]
  local key, tenant_key, known_tier, concurrency = args[4], args[5], args[6], args[7]
  local default_tier, default_limit, words = args[8], args[9], args[10]
  local message, serial, next_serial = args[11], args[12], args[13]
  local keep_ms, job, snooze_ms = tonumber(args[14]), args[15], tonumber(args[16])
  local broker, is_new, tier_waits, frozen_ms = args[17], args[18], args[19], args[20]

  local logical, now, _, said = Clock.tick(ctx, lease_ms, frozen_ms)
  if key ~= "" and words == "" and tier_waits == "" and not said.steered and not said.watched then
    return acquire_of_tier(ctx, args, logical, now)
  end
  local rules = {logical = logical, now = now, enforcement = "on", weighs = true, look_ms = math.huge, of_gate = true,
    snooze_ms = snooze_ms, paced = said.paced, entered = said.entered, watched = said.watched}
  local version = tonumber(redis.call("HGET", ctx.prefix .. "news", "version") or 0)
  Config.look_again(ctx, Config.declare(ctx, words, is_new ~= ""))
  local copy, limits = ctx.prefix .. "copy:" .. message, Rates.of_one_key(Limits.limits_now(ctx, words, rules))

  local tier, limit, held = "", -1, 0
  if key ~= "" then
    tier, limit = Config.entitlement(ctx.prefix .. "tiers", ctx.prefix .. tenant_key, known_tier, concurrency,
      default_tier, default_limit, {})
    if said.steered then limit = Config.tenant_limit(ctx, key, string.match(tenant_key, ":(.*)$"), limit, rules) end
    Leases.clear_ended(ctx, key, rules)
    held = redis.call("ZCOUNT", ctx.prefix .. "leases:" .. key, "(" .. Rates.whole(logical), "+inf")
  end
  for index = 1, #limits do Leases.clear_ended(ctx, limits[index].key, rules) end

  -- One call takes all slots of an attempt. So one slot shows that the attempt holds them all.
  local held_until = redis.call("ZSCORE", ctx.prefix .. "leases:" .. (limits[1] and limits[1].key or key), lease)
  local starts = {1, held, limit, -1, version, tier, "", said.watched and "t" or "w"}
  if held_until and tonumber(held_until) > logical then return starts end
  local gone, memory = Copies.superseded(copy, message, serial)
  if gone then
    redis.call("HINCRBY", ctx.prefix .. "counts", "superseded", 1)
    return {-2, held, limit, -1, version, tier, "", "w"}
  end

  -- A task that was parked here takes the starts that were promised to it. A newcomer takes no start that was
  -- promised to another task.
  if said.parked and memory.seq then Parked.forget_parked(ctx, key, message, Parked.parked_places(key, words)) end
  rules.ahead = said.parked and not memory.seq and Parked.is_of_broker(said, broker)
  local counts, events, closed = ctx.prefix .. "counts", ctx.prefix .. "events", nil
  local taken = limit >= 0 and held + Limits.promised(ctx, key, rules) or held
  local full = limit >= 0 and taken >= limit
  local here = WorkerLimit.crowded_here(ctx, limits, lease, rules)
  if enforcement ~= "off" then
    if full then
      Stats.count_refused(counts, ctx.prefix .. "exceeded", tier, Events.at_tier(key, limit, taken))
      Stats.count_at_gate(ctx.prefix .. "minute:", now, "refused", tier, job)
    end
    closed = Limits.refusal(ctx, words, rules)
    if rules.ahead and enforcement == "on" and not full and not closed then
      local behind = Parked.queue_of_gate(ctx, key, limits)
      if behind then closed, behind.why, behind.longest_ms = behind, "queue", math.huge end
    end
    if not full then closed = closed or here end
    if closed then
      redis.call("HINCRBY", counts, "limited", 1)
      Stats.count_exceeded(ctx.prefix .. "exceeded", STRATEGIES[closed.why] or closed.why, closed.key)
    end
  end

  if enforcement == "on" and (full or closed) then
    local action = closed and closed.action or "w"
    local by_tier = full and action == "w"
    local retry_after_ms = closed and closed.longest_ms < math.huge and math.ceil(closed.longest_ms) or -1
    if action == "r" then
      redis.call("HINCRBY", counts, "rescheduled", 1)
      retry_after_ms = Backoff.pace_ms(
        ctx, closed.says, closed.again_ms, closed.why == "full", rules, lease, 0)
    end
    if action == "d" then
      redis.call("HINCRBY", counts, "dropped", 1)
      if job ~= "" then Events.append_event_of(events, "rate_limit.dropped", cjson.decode(job), "key", closed.by) end
      Copies.copy_admitted(copy, message, serial, memory, keep_ms)
    else
      if job ~= "" and memory.told == "" then
        -- A closed limit without a name is the tier's.
        local at = (by_tier or not closed.name) and Events.at_tier(key, limit, taken) or Limits.why_closed(ctx, closed, rules)
        memory.told = Events.tell_exceeded(events, cjson.decode(job), at)
      end
      Copies.copy_refused(copy, message, serial, next_serial, memory, keep_ms + math.max(0, retry_after_ms))
    end
    if by_tier then
      if limit > 0 then Leases.note_rejected(ctx.prefix .. "freed:" .. key, keep_ms) end
      -- A task with other limits waits for its snooze, even if a slot may be free sooner.
      local again_ms = words == "" and limit > 0 and Leases.first_end_ms(ctx, key, logical) or -1
      return {limit == 0 and -1 or 0, held, limit, again_ms, version, tier, "", action}
    end
    return {CODES[closed.why], held, limit, retry_after_ms, version, tier, closed.by or closed.key, action}
  end

  Events.tell_admitted(events, job, memory)
  if said.watched then Events.tell_gate_started(ctx, lease, job, key, logical) end
  Stats.count_at_gate(ctx.prefix .. "minute:", now, "started", tier, job)
  Copies.copy_admitted(copy, message, serial, memory, keep_ms)
  if key ~= "" then
    Leases.take_slot(ctx, key, lease, logical + lease_ms)
    starts[2] = held + 1
  end
  for index = 1, #limits do
    if limits[index].key ~= key then Leases.take_slot(ctx, limits[index].key, lease, logical + lease_ms) end
    Rates.count_start(ctx, limits[index], logical)
    WorkerLimit.begin_limit(ctx, limits[index], lease, rules)
  end
  Rates.forget_idle(ctx, logical)
  Config.forget_cooled(ctx, logical, FORGET_AT_MOST)
  if enforcement == "observe" and (full or closed) then starts[1] = 2 end
  return starts
end)
