--[[
  tenants: what a tenant may run now.

  `rules` is a table of the caller's settings. It has these fields:
  - logical and now (ms), version, enforcement
  - default_tier, and default_numbers: its numbers as the caller holds them, a text (numbers.lua)
  - held_tiers: such texts by tier as the caller holds them, or nil. They count until tiers are published
  - has_overrides: whether people have paused keys or changed their numbers
  - no_tenant_published: whether no tenant has a record. To look for one costs 2.2 % of a claim of four
  - only_reads: whether the call must not write
]]

-- Gives the rules of a call all tiers of the caller's settings.
function Tenants.use_tiers(rules, default_tier, tiers)
  rules.default_tier, rules.default_numbers, rules.held_tiers = default_tier, tiers[default_tier], tiers
end

-- Returns a record with the fields of Config.entitlement, after a pause or an override by a person. If the tenant has a
-- rate or a throttle, it also has these fields:
-- - pace: the limit that checks its starts
-- - counts: the limit that counts them. It has the numbers that a person took away too, so that the window is right when
--   that ends.
function Tenants.state(ctx, key, tenant, tier, rules)
  if key == Tasks.SYSTEM then return {tier = "", weight = 1, limit = -1, rate = "", throttle = ""} end
  local state = Config.entitlement(ctx, tenant, tier, rules)
  local rate, throttle = state.rate, state.throttle
  if rules.has_overrides then Config.override_tenant(ctx, key, state, rules) end
  local now_rate, now_throttle = state.rate, state.throttle
  if rate .. throttle .. now_rate .. now_throttle ~= "" then
    state.pace = {key = key, rate = now_rate, throttle = now_throttle}
    state.counts = {key = key, rate = now_rate ~= "" and now_rate or rate,
      throttle = now_throttle ~= "" and now_throttle or throttle, of_tier = true}
  end
  return state
end

-- Returns the state of the tenant of a task. While tasks of the tenant wait, their tier replaces that of the task.
function Tenants.state_of(ctx, task, rules)
  local tier = redis.call("HGET", ctx.prefix .. Keys.TENANT_STATE .. task.key, "tier")
  return Tenants.state(ctx, task.key, task.tenant, tier or task.tier, rules)
end

-- Returns the limits that count a start of a tenant whose task has these limits. Limits of one key are joined.
function Tenants.counting(state, limits)
  if not state.counts then return Rates.of_one_key(limits) end
  return Rates.of_one_key({state.counts, unpack(limits)})
end

-- Notes in the clock that the rate or the throttle of a tenant counts starts.
function Tenants.note_paced(ctx, rules)
  if not rules.paced then redis.call("HSET", ctx.prefix .. Keys.CLOCK, "paced", 1) end
  rules.paced = "1"
end

--[[
  check: how much a tenant may hold and how much it holds.

  If a tenant is found at its limit, its state notes that. `at_limit` holds the config version by which the tenant was
  checked, as version + 1. The score is negative if the tenant is paused. So a tenant checked by an older config lies
  between the negative and the positive score of the present version. A worker that does not enforce limits also reads
  all higher scores, which are those of tenants that are not paused.

  `checked` in the clock is the version by which all of them were checked. While it is the present one, a worker that
  enforces limits reads none of them.
]]

-- Moves the clock on. `args` has five settings of the worker from `at` on:
-- - lease_ms (int): how long a lease lives without a renewal
-- - enforcement: "on", "observe" (count, reject nothing) or "off"
-- - default_tier: for a tier that is not known
-- - default_numbers: of the default tier, a text (numbers.lua)
-- - max_deliveries (int): deaths after which a task goes to the dead letters; 0 is never
--
-- Returns the rules by which this call checks, what the clock holds beside its times, and the epoch.
function Tenants.rules_of(ctx, args, at, frozen_ms)
  local lease_ms = tonumber(args[at])
  local logical, now, epoch, flags = Clock.tick(ctx, lease_ms, frozen_ms)
  ctx.ranked, ctx.unique = flags.ranked, flags.unique
  return {
    logical = logical, now = now, lease_ms = lease_ms, enforcement = args[at + 1], default_tier = args[at + 2],
    default_numbers = args[at + 3], max_deliveries = tonumber(args[at + 4]), version = flags.version,
    checked = tonumber(flags.checked), no_tenant_published = not flags.tenant_published, limited = flags.limited,
    has_overrides = flags.has_overrides, has_backoff = flags.has_backoff, traced = flags.traced, parked = flags.parked,
    paced = flags.paced,
  }, flags, epoch
end

-- Returns a verdict, which is the state of the tenant with these fields besides:
-- - open: one more task may start
-- - lends: none may, but a claim that finds nothing else may lend the tenant a place
-- - full: no task would start if limits were enforced
-- - most: how many tasks the tenant may run in all, -1 is unlimited
-- - opens_ms, closes, number: if the tenant has a free slot, and its rate or its throttle lets no task start, as
--   Limits.pace_ms returns them
-- - held: if it was counted
-- - paused, closed
-- - waiting: how many tasks wait in `queue`, if one is given
function Tenants.check(ctx, key, rules, queue)
  if key == Tasks.SYSTEM then return {open = true, weight = 1} end
  local known = redis.call("HMGET", ctx.prefix .. Keys.TENANT_STATE .. key, "tier", "tenant", "at_limit",
    "q:" .. (queue or ""))
  local verdict = Tenants.state(ctx, key, known[2] or "", known[1] or "", rules)
  local limit, ends_ms = verdict.limit, verdict.ends_ms
  -- The record is gone some time after its end. The tenant's state must not bring its tier back then.
  if ends_ms and ends_ms <= rules.now and not rules.only_reads then
    redis.call("HSET", ctx.prefix .. Keys.TENANT_STATE .. key, "tier", verdict.tier)
  end
  local fits, held = limit ~= 0, nil
  if limit > 0 and rules.enforcement ~= "off" then fits, held = Slots.fits(ctx, key, limit) end
  -- One of several partitions does not know what may start in the others.
  local lends = held and not fits and held < (verdict.burst or 0) and not Rings.is_partition(ctx)
  if (fits or lends) and verdict.pace and rules.enforcement ~= "off" then
    verdict.opens_ms, verdict.closes, verdict.number = Limits.pace_ms(ctx, verdict.pace, rules)
    if verdict.opens_ms > 0 then fits, lends = false, false end
  end
  verdict.open = rules.lets_all_start or fits or limit ~= 0 and rules.enforcement == "observe"
  verdict.lends, verdict.most = lends and not verdict.open, limit > 0 and math.max(limit, verdict.burst or 0) or limit
  -- A worker that observes does not know what else waits, so it counts only what is above the burst.
  verdict.full, verdict.held, verdict.paused = not (fits or lends), held, limit == 0
  verdict.closed, verdict.waiting = known[3], tonumber(known[4])
  return verdict
end

function Tenants.mark_at_limit(ctx, key, verdict, rules)
  Lending.mark(ctx, key, verdict.lends, verdict.closed)
  local checked_by = rules.version + 1
  redis.call("ZADD", ctx.prefix .. Keys.AT_LIMIT, verdict.paused and -checked_by or checked_by, key)
  -- No call reports that time opens the tenant: the record of its tier ends or expires, or its rate has room again. No
  -- lease begins with a space.
  local wait = (verdict.ends_ms or 0) - rules.now
  if wait <= 0 then wait = redis.call("PTTL", ctx.prefix .. Keys.TENANT .. verdict.tenant) end
  if wait < 0 then wait = math.huge end
  if verdict.closes then
    Tenants.note_paced(ctx, rules)
    wait = math.min(wait, math.ceil(verdict.opens_ms))
  end
  if wait < math.huge then redis.call("ZADD", ctx.prefix .. Keys.ENDS, rules.logical + wait, " " .. key) end
end

function Tenants.count_rejection(ctx, queue, verdict, rules)
  -- The gate has counted the rejection of a parked task.
  if rules.promotes then return end
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "rejected:" .. verdict.tier, 1)
  Stats.note_minute(ctx, "rejected", verdict.tier, queue)
end

-- A task starts above a limit of its tenant's tier, because the worker enforces nothing.
function Tenants.count_observed(ctx, queue, key, verdict, rules)
  if rules.promotes then return end
  Tenants.count_rejection(ctx, queue, verdict, rules)
  Stats.count_observed(ctx, rules, verdict.tier, key, (verdict.held or Slots.held(ctx, key)) + 1)
end

-- A tenant is at its limit. It becomes blocked and keeps its place. If it may be lent places, nothing rejects its tasks.
function Tenants.block(ctx, queue, key, start, verdict, rules)
  if not verdict.lends then Tenants.count_rejection(ctx, queue, verdict, rules) end
  redis.call("ZREM", ctx.prefix .. Keys.ACTIVE .. queue, key)
  redis.call("ZADD", ctx.prefix .. Keys.BLOCKED .. queue, start, key)
  Active.note_place(ctx, queue, key)
  Tenants.mark_at_limit(ctx, key, verdict, rules)
end

-- The cause that kept a tenant out may be over. If it is, the tenant is active again in all its queues.
function Tenants.unblock(ctx, key, rules)
  local tenant_state = ctx.prefix .. Keys.TENANT_STATE .. key
  if redis.call("HEXISTS", tenant_state, "at_limit") == 0 then return end
  local verdict = Tenants.check(ctx, key, rules)
  if not verdict.open then
    Tenants.mark_at_limit(ctx, key, verdict, rules)
    return
  end
  redis.call("HDEL", tenant_state, "at_limit")
  redis.call("ZREM", ctx.prefix .. Keys.AT_LIMIT, key)
  local fields = redis.call("HKEYS", tenant_state)
  for index = 1, #fields do
    local queue = string.match(fields[index], "^q:(.*)$")
    if queue and redis.call("EXISTS", ctx.prefix .. Keys.READY .. key .. " " .. queue) == 1 then
      Active.unblock(ctx, queue, key)
    end
  end
end

-- Checks tenants that were at their limit before the last config version, at most `most` per call. Returns how many.
function Tenants.check_again(ctx, rules, most)
  local enforces = rules.enforcement == "on"
  if enforces and rules.checked == rules.version then return 0 end
  local checked_by = string.format("%.0f", rules.version + 1)
  local from = rules.lets_all_start and "-inf" or "(-" .. checked_by
  local stale = redis.call("ZRANGEBYSCORE", ctx.prefix .. Keys.AT_LIMIT, from,
    enforces and "(" .. checked_by or "+inf", "LIMIT", 0, most)
  for index = 1, #stale do Tenants.unblock(ctx, stale[index], rules) end
  if enforces and #stale < most then
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "checked", string.format("%.0f", rules.version))
  end
  return #stale
end
