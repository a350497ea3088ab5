--[[
  snapshot: what a key has at the moment: its leases, its numbers, and why it lets no task start.

  It has the rules of the next claim, because limits.lua and config.lua check for both. It writes nothing. Times
  are in ms, and a field without a value is left out. `celery_fairness/control/key/snapshot.py` names what each field
  means.
]]
-- One call looks at most at this many ended leases.
local ENDED_AT_MOST = 1000
-- No start depends on these numbers of a tier.
local NO_START = {weight = true, max_waiting = true}

-- Returns an array that is an array in JSON too, even if it is empty.
function Snapshot.list(items)
  return #items > 0 and items or nil
end

-- Returns leases that have ended and stand in the table. A call reads them once, and keeps their names in `ctx.memo.gone`.
local function ended_leases(ctx, rules)
  local memo = ctx.memo
  if not memo.ended then
    memo.ended, memo.gone = redis.call("ZRANGEBYSCORE", ctx.prefix .. Keys.ENDS, "-inf",
      Rates.int_text(rules.logical), "LIMIT", 0, ENDED_AT_MOST), {}
    for index = 1, #memo.ended do memo.gone[memo.ended[index]] = true end
  end
  return memo.ended
end

-- Returns how many leases of a key live, and how many have ended and still stand in the table.
local function count_leases(ctx, key, rules)
  local held = Slots.count(ctx, key)
  local ended = held > 0 and ended_leases(ctx, rules) or {}
  local unswept = #ended > 0 and Slots.count_of(ctx, key, ended) or 0
  return held - unswept, unswept
end

-- Returns a lease of a key with what its row has of its task, and the limits of the task.
local function lease_of(ctx, key, id, logical)
  local ends = redis.call("ZSCORE", ctx.prefix .. Keys.ENDS, id)
  local lease = {id = id, ends_ms = math.max(0, tonumber(ends or logical) - logical)}
  local row, tag = Tasks.read_running(ctx, id)
  local task = row and Tasks.read(ctx, tag)
  if task then
    lease.state, lease.queue, lease.charged = row.state, Tasks.shown_queue(task), task.key
    lease.task_id = task.id ~= "" and task.id or tag
  elseif row then
    -- The broker has the copy of a promoted task.
    lease.state, lease.charged, lease.task_id = row.state, string.match(row.keys, "^[^,]+"), row.id ~= "" and row.id or tag
  else
    row = Tasks.read_held(ctx, id)
    if not row then return lease end
    lease.queue, lease.task_id = row.queue, row.id
  end
  local at, usual = string.match(row.since, "^@(%d+)~?(%d*)")
  local slots = Slots.of_lease(row.amounts, key)
  lease.slots = slots > 1 and slots or nil
  lease.owner, lease.task = row.owner ~= "-" and row.owner or "", row.name
  lease.held_ms, lease.usual_ms = math.max(0, logical - at), tonumber(usual)
  return lease, task and task.limits or row.charge
end

-- Adds those of some leases of a key that live. Returns the limits of their tasks.
function Snapshot.add_leases(ctx, found, names, rules)
  local leases, specs = {}, {}
  for index = 1, #names do
    if not ctx.memo.gone[names[index]] then
      leases[#leases + 1], specs[#specs + 1] = lease_of(ctx, found.key, names[index], rules.logical)
    end
  end
  found.leases = Snapshot.list(leases)
  return table.concat(specs, ",")
end

-- Returns the pause of a key, or of the whole tenant. The pause that ends last counts.
local function pause_of(ctx, key, of_all, rules)
  local of, lasts, text = key, Config.paused_ms(ctx, key, rules)
  if of_all ~= "" and of_all ~= key and Config.is_of_all(of_all) then
    local of_tenant, its_text = Config.paused_ms(ctx, of_all, rules)
    if of_tenant > lasts then of, lasts, text = of_all, of_tenant, its_text end
  end
  if lasts == 0 then return nil end
  local since, by = string.match(text, "^(%d+) (.*)$")
  return {ends_ms = lasts < math.huge and rules.now + lasts or nil, since_ms = tonumber(since), by = by,
    pause_of = of ~= key and of or nil}
end

-- Returns the snapshot of a key without its limit and its leases. `tenant_key` is "" if the key is no tenant's.
function Snapshot.of_key(ctx, key, tenant_key, rules)
  local held, unswept = count_leases(ctx, key, rules)
  ctx.memo.held[key] = held
  local cooled = redis.call("ZSCORE", ctx.prefix .. Keys.COOL_DOWNS, key)
  local cool_ms = math.max(0, tonumber(cooled or 0) - rules.logical)
  return {key = key, held = held, ended_unswept = unswept, pause = pause_of(ctx, key, tenant_key, rules),
    cool_ms = cool_ms > 0 and cool_ms or nil, override = Config.override_of(ctx, key, rules),
    reported = Reports.shown(ctx, key, rules)}
end

-- Adds what the tier of a tenant gives it. The tier of the tasks that wait replaces that of the caller. An unknown
-- tier adds nothing. `entitled` has the numbers as a text.
function Snapshot.add_tier(ctx, found, tenant, tier, rules)
  local waits = redis.call("HGET", ctx.prefix .. Keys.TENANT_STATE .. found.key, "tier")
  if waits and waits ~= "" then tier = waits end
  local state = Config.entitlement(ctx, tenant, tier, rules)
  found.published, found.own_number = state.is_published, state.has_own
  if tier == "" and not state.is_published then return end
  found.tier, found.weight = state.tier, state.weight
  state.concurrency = state.limit >= 0 and state.limit or nil
  found.entitled = Numbers.write(state, NO_START)
end

-- Returns the limit of a tenant's tier and the reason for its concurrency. If the key is no tenant's, the limit has no
-- number. It needs neither permits nor lots, because a tenant is in one partition.
function Snapshot.limit_of_tier(found)
  local kind = found.own_number and "own" or "tier"
  local limit = Numbers.set({key = found.key, private = true}, found.entitled or "")
  return limit, found.tier and {kind = kind, limit = limit.concurrency, tier = found.tier}
end

-- Returns a limit of a task with the numbers that a claim starts from, and the reason for its concurrency.
function Snapshot.limit_of_task(ctx, spec)
  local limit, kind = Limits.set_own_numbers(ctx, Limits.read_limit(spec)), "tasks"
  local row = Config.row_of_key(ctx, limit.key)
  local own = row and Config.limit_of_row(row, limit.key)
  if row and not limit.asks then kind = own and own.kind or "settings" end
  return limit, {kind = kind, limit = limit.concurrency}
end

-- Returns why no task may start now, and after how long one may. The time is nil if it takes a person, or the end
-- of a lease.
local function blocked_by(ctx, limit, own, found, rules)
  local stops, cool_ms, override = 0, found.cool_ms or 0, found.override
  if found.pause then stops = found.pause.ends_ms and found.pause.ends_ms - rules.now or math.huge end
  if limit.concurrency == 0 then
    local ends = override and own ~= 0 and override.ends_ms
    stops = math.max(stops, ends and ends - rules.now or math.huge)
  end
  if stops > 0 then return "paused", stops < math.huge and math.max(stops, cool_ms) or nil end
  if cool_ms > 0 then return "cool-down", cool_ms end
  local wait, _, why = Limits.wait_ms(ctx, limit, rules, limit.place)
  if why == "full" then return "concurrency", nil end
  -- The last answer of the home has the time of the next turn of the partition.
  if limit.lacks_lot then return why, limit.its.turn_at and math.max(0, limit.its.turn_at - rules.logical) end
  return why, why and wait
end

-- Returns the windows of a limit as rows {STARTS, PERIOD_MS, COUNT, WAIT_MS}. COUNT is the units that started in it, and
-- WAIT_MS the time until it has fewer, or fewer than STARTS.
function Snapshot.rates_of(window, limit, logical)
  local rows = {}
  for starts, period_ms in Rates.windows_of(limit.rate) do
    local count, wait = Rates.count_in(window, starts, period_ms, logical)
    rows[#rows + 1] = {starts, period_ms, count, math.ceil(wait)}
  end
  return Snapshot.list(rows)
end

-- Returns the throttle of a limit, {STARTS, PERIOD_MS, WAIT_MS}, or nil. WAIT_MS is the time until its next start.
function Snapshot.throttle_of(window, limit, logical)
  local starts, period_ms = Rates.windows_of(limit.throttle)()
  if not starts then return nil end
  local wait = window.ideal and window.ideal + period_ms / starts - logical or 0
  return {starts, period_ms, math.max(0, math.ceil(wait))}
end

-- Returns what a key saves, whether it is for the place of the limit, and for how long at most. While slots gather, that is
-- not known.
local function saving_of(ctx, limit, rules)
  local saved = ctx.several and Saving.of(ctx, limit.key)
  if not saved or Saving.is_over(saved, rules) then return nil end
  return {slots = saved.slots, units = saved.units, tenant = saved.tenant, is_own = saved.place == limit.place,
    ends_ms = saved.ends and saved.ends - rules.logical}
end

-- Adds the numbers of a limit of the key, the reason for its concurrency, why it lets no task start, and what the key
-- saves. An override replaces its numbers. `permits` is how many permits of a shared key start tasks here (permits.lua), and
-- `lacks_lot` whether its rate has lent too few starts (lots.lua). `limit.place` is the place at which the task waits, or nil.
function Snapshot.check(ctx, found, limit, reason, rules)
  local own = limit.concurrency
  found.override = found.override or Config.override_of_limit(ctx, limit, rules)
  Config.replace(limit, found.override)
  Permits.set(ctx, limit, rules)
  Lots.set(ctx, limit, rules)
  found.permits = limit.permits
  found.blocked_by, found.opens_ms = blocked_by(ctx, limit, own, found, rules)
  found.lacks_lot = limit.lacks_lot or nil
  found.local_limit, found.on_limit = limit.local_limit, limit.on_limit
  found.numbers, found.reason, found.saving = Numbers.write(limit), reason, saving_of(ctx, limit, rules)
end
