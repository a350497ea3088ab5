--[[
  acquire: take every slot of a task whose message another broker holds, or none of them.

  The slots are those of its tenant's tier and of its other limits. A limit counts these tasks and claimed tasks
  together.

  args[1]  lease          str  unique per attempt; a second call with the same lease changes nothing
  args[2-6] settings      any  of the worker (Tenants.rules_of)
  args[7]  key            str  of the tenant's tier limit; "" is a system task
  args[8]  tenant_key     str  of the tenant's record, without the prefix
  args[9]  tier           str  the tenant's tier as the caller holds it
  args[10] numbers        str  those of that tier as the caller holds them, a text (numbers.lua), or ""
  args[11] specs          str  the limits beside the tier's, or ""
  args[12] message        str  whose copies they are; "" if the message carries no serial
  args[13] serial         str  of the copy that wants to start
  args[14] next_serial    str  of the copy that the caller publishes after a rejection
  args[15] keep_ms        int  how long the memory of copies is kept, beside the wait
  args[16] job            str  "ID NAME QUEUE" of the task, or ""
  args[17] snooze_ms      int  the longest wait of a task that is tried again, unless its limit opens later
  args[18] broker         str  that has the message; "" is any
  args[19] is_new         str  "1" if its limits are the newest of their keys (config.lua), otherwise ""
  args[20] frozen_ms      str  "" in production (server TIME); set only by tests

  A task waits behind the parked tasks of its own broker. It does not wait behind those of another broker.

  Returns "CODE HELD LIMIT RETRY_AFTER_MS VERSION TIER BY ACTION". A client reads one text faster than eight values.
  - HELD and LIMIT are those of the tier. If the task starts, HELD counts its lease too. The limit -1 is unlimited.
  - RETRY_AFTER_MS is the time until no limit rejects the task. It is -1 if that is unknown.
  - BY is the key of the limit that rejects the task. It is "" for the tier's limit.
  - ACTION "d" drops a rejected task, "r" reschedules it, and "w" lets it wait. A task that starts has "w".

    1 ADMITTED   2 ADMITTED_OVER_LIMIT   0 AT_CONCURRENCY_LIMIT   -1 PAUSED   -2 SUPERSEDED
    -3 COOLS_DOWN   -4 RATE   -5 THROTTLE   -7 OTHERS_WAIT   -8 WORKER_FULL
]]
-- The events use these names.
local STRATEGIES = {full = "concurrency", cools = "cool-down", queue = "concurrency", here = "concurrency"}
local CODES = {full = 0, paused = -1, cools = -3, rate = -4, throttle = -5, queue = -7, here = -8}

local function acquire(keys, args)
  local ctx, lease, key, tenant_key, specs = {prefix = keys[1], memo = {}, result = {}}, args[1], args[7], args[8], args[11]
  local message, serial, next_serial, keep_ms = args[12], args[13], args[14], tonumber(args[15])
  local job, broker, is_new, frozen_ms = Events.read_job(args[16]), args[18], args[19] ~= "", args[20]

  local of_worker, flags = Tenants.rules_of(ctx, args, 2, frozen_ms)
  local enforcement, version = of_worker.enforcement, of_worker.version
  Leases.expire(ctx, of_worker, Leases.ENDED_AT_MOST)
  local rules = {logical = of_worker.logical, now = of_worker.now, enforcement = "on",
    limited = of_worker.limited, has_backoff = flags.has_backoff,
    kept_run_times = flags.run_times, snooze_ms = tonumber(args[17])}
  if specs ~= "" then Config.check_again(ctx, Config.declare(ctx, specs, is_new)) end
  local copy = ctx.prefix .. Keys.COPY .. message
  ctx.memo.limits, ctx.memo.windows = {}, {}
  local each_limit = specs ~= "" and Limits.limits_now(ctx, specs, rules) or {}
  local limits = Rates.of_one_key(each_limit)

  local tier, limit, held, state = "", -1, 0, {}
  if tenant_key == "tenant:_invalid" then Clock.note_invalid(ctx, of_worker.now) end
  if key ~= "" then
    of_worker.held_tiers = args[10] ~= "" and {[args[9]] = args[10]} or nil
    state = Tenants.state(ctx, key, string.match(tenant_key, ":(.*)$"), args[9], of_worker)
    tier, limit = state.tier, state.limit
    held = Slots.held(ctx, key)
  end

  local starts = {1, held, limit, -1, version, tier, "", "w"}
  local gone, memory = Copies.superseded(copy, message, serial)
  if gone then
    redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "superseded", 1)
    return {-2, held, limit, -1, version, tier, "", "w"}
  end

  rules.parked = flags.parked
  local promoted_keys = memory.seq and Promotions.arrive(ctx, of_worker, message, serial)
  -- The promotion has reserved what its task takes.
  rules.was_promoted = promoted_keys and true
  if promoted_keys then held = Slots.held(ctx, key) end
  local counts, closed = ctx.prefix .. Keys.COUNTERS, nil
  local full = enforcement ~= "off" and Slots.free(limit, held) == 0
  local opens_ms, closes, number = math.huge, nil, nil
  if not full and enforcement ~= "off" and state.pace then
    opens_ms, closes, number = Limits.pace_ms(ctx, state.pace, rules)
    full = closes ~= nil
  end
  if enforcement ~= "off" then
    closed = specs ~= "" and Limits.check(ctx, specs, rules) or nil
    if flags.parked and not memory.seq and enforcement == "on" and not full and not closed then
      local behind = Promotions.before(ctx, broker, key, each_limit)
      if behind then closed, behind.why, behind.longest_ms = behind, "queue", math.huge end
    end
    if not full and specs ~= "" then closed = closed or WorkerLimit.check(ctx, limits, lease) end
  end
  -- The limits may be full because this call was sent before, and the lease counts.
  if (full or closed) and Tasks.read_held(ctx, lease) then return starts end
  local at_tier = full and Events.at_tier(key, limit, held, closes, number)
  if full then
    redis.call("HINCRBY", counts, "rejected:" .. tier, 1)
    Stats.count_rejection(ctx, at_tier.strategy, key)
    Stats.count_at_gate(ctx, rules, "rejected", tier, job)
  end
  if closed then
    redis.call("HINCRBY", counts, "limited", 1)
    Stats.count_rejection(ctx, STRATEGIES[closed.why] or closed.why, closed.key)
  end

  if enforcement == "on" and (full or closed) then
    -- The slots of the promotion are free.
    Leases.open_freed(ctx, of_worker)
    local action = closed and closed.action or "w"
    local by_tier = full and action == "w"
    local longest_ms = math.max(full and opens_ms or 0, closed and closed.longest_ms or 0)
    local retry_after_ms = longest_ms < math.huge and math.ceil(longest_ms) or -1
    if action == "r" then
      redis.call("HINCRBY", counts, "rescheduled", 1)
      retry_after_ms = Backoff.wait_ms(ctx, closed, rules, lease, 0)
    end
    if action == "d" then
      redis.call("HINCRBY", counts, "dropped", 1)
      if job then Events.write_event_of(ctx, "rate_limit.dropped", job, "key", closed.by) end
      Copies.copy_admitted(copy, message, serial, memory, keep_ms)
    else
      if job and memory.reported == "" then
        -- A closed limit without a name is the tier's.
        local at = by_tier and at_tier or closed.name and Limits.why_closed(ctx, closed)
          or Events.at_tier(key, limit, held)
        memory.reported = Events.emit_exceeded(ctx, job, at)
      end
      Copies.copy_rejected(copy, message, serial, next_serial, memory, keep_ms + math.max(0, retry_after_ms))
    end
    if by_tier then
      local code = CODES[closes or limit == 0 and "paused" or "full"]
      return {code, held, limit, retry_after_ms, version, tier, "", action}
    end
    return {CODES[closed.why], held, limit, retry_after_ms, version, tier, closed.by or closed.key, action}
  end

  local its_keys = Tasks.keys_of(key ~= "" and key or Tasks.SYSTEM, specs)
  local ends_at = Rates.int_text(rules.logical + of_worker.lease_ms)
  local amounts
  for index = 1, #limits do amounts = Leases.add_amounts(amounts, limits[index]) end
  local held_lease = {lease = lease, keys = its_keys, limits = specs, amounts = amounts, task = job or Leases.UNKNOWN,
    ends_at = ends_at}
  if not Leases.hold(ctx, held_lease, rules) then return starts end
  if memory.since and job then Stats.count_parked(ctx, rules, memory) end
  Events.emit_admitted(ctx, job, memory)
  if flags.traced and job then Events.emit_gate_started(ctx, lease, job, key, memory.since, rules.now) end
  Stats.count_at_gate(ctx, rules, "started", tier, job)
  Copies.copy_admitted(copy, message, serial, memory, keep_ms)
  if state.pace then Tenants.note_paced(ctx, of_worker) end
  local counted = Tenants.counting(state, each_limit)
  for index = 1, #counted do Rates.count_start(ctx, counted[index], rules) end
  for index = 1, #limits do Backoff.note_begin(ctx, limits[index], rules) end
  -- The task may have come with other limits than those of its promotion.
  if promoted_keys and promoted_keys ~= its_keys then Leases.open_freed(ctx, of_worker) end
  if key ~= "" then starts[2] = held + 1 end
  if enforcement == "observe" and (full or closed) then
    starts[1] = 2
    if full then Stats.count_observed(ctx, rules, tier, key, held + 1) end
  end
  return starts
end

register("acquire", {"allow-oom"}, function(keys, args)
  return table.concat(acquire(keys, args), " ")
end)
