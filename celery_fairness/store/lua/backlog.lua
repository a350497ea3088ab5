--[[
  backlog: how many waiting tasks of a queue free places could start now, and why the others wait.

  Each limit has room for some tasks. Each tenant has free slots of its tier. Waiting tasks use both up in the order
  of the calls. So no slot counts for two tasks of a call.

  Invariant: the module writes nothing and starts nothing.

  Weakness: it does not see how many tasks a single process may run. It counts one start of a throttle.
]]

-- One tenant has at most this many ready lanes and blocked groups that a call looks at. The tasks of other lanes count
-- as those of the last lane.
local LANES_OF_TENANT = 20
-- One lane takes about ten microseconds. A call that has looked at this many checks no further tenant.
Backlog.LANES_AT_MOST = 100
-- A tenant at a limit waits for this reason.
local REASONS = {paused = "paused", cools = "cool_down"}

-- Returns what a call keeps while it checks. `wanted` has the settings of the caller:
-- - lease_ms, frozen_ms and default_tier
-- - tiers: the numbers of each tier as a text (numbers.lua)
-- - enforcement: "on", "observe" or "off"
function Backlog.begin(ctx, wanted)
  local logical, now, _, flags = Clock.read_clock(ctx, wanted.lease_ms, wanted.frozen_ms)
  local rules = {logical = logical, now = now, enforcement = wanted.enforcement, parked = flags.parked,
    has_overrides = flags.has_overrides, is_look = true}
  ctx.memo.limits, ctx.memo.held = {}, {}
  Tenants.use_tiers(rules, wanted.default_tier, wanted.tiers)
  return {ctx = ctx, rules = rules, tenant_states = {}, taken = {}, lanes = 0}
end

-- Returns how many tasks the rate and the throttle of a limit let start from now on, if they let one start. Each task takes
-- as many units as the first one. `place` is that at which the tasks wait, or nil.
local function pace_room(ctx, limit, rules, place)
  local room, window = math.huge, limit.rate ~= "" and Rates.read(ctx, limit.key)
  for starts, period_ms in Rates.windows_of(limit.rate) do
    local _, reserved = Promotions.reserved(ctx, limit.key, rules)
    local saved = Saving.of_others(ctx, limit.key, rules, place, "units") or 0
    local units = starts - reserved - saved - Rates.count_in(window, starts, period_ms, rules.logical)
    room = math.min(room, math.floor(units / math.min(limit.units or 1, starts)))
  end
  if limit.throttle ~= "" then room = math.min(room, 1) end
  return room
end

-- Returns the state of a tenant, with the slots that it holds, and how many of its tasks may start now. `closes` is
-- "rate" or "throttle" if one of these lets none start.
local function tenant_state_of(it, key, tier, tenant)
  local known = it.tenant_states[key]
  if known then return known end
  local ctx, rules = it.ctx, it.rules
  local found = Tenants.state(ctx, key, tenant, tier, rules)
  found.free = math.huge
  found.held = Slots.held(ctx, key)
  if found.limit == 0 or rules.enforcement == "on" then found.free = Slots.free(found.limit, found.held) end
  if found.free > 0 and found.pace and rules.enforcement == "on" then
    local _, closes = Limits.pace_ms(ctx, found.pace, rules)
    found.closes = closes
    found.free = math.min(found.free, closes and 0 or pace_room(ctx, found.pace, rules))
  end
  it.tenant_states[key] = found
  return found
end

-- Returns how many tasks the rates of a limit let start from now on, how many slots it has for them, and why it lets none
-- start.
local function room_of(ctx, limit, rules, place)
  local _, _, why = Limits.wait_ms(ctx, limit, rules, place)
  if why then return {starts = 0, slots = 0, why = why} end
  if rules.enforcement ~= "on" then return {starts = math.huge, slots = math.huge} end
  local most, slots = limit.concurrency, math.huge
  if most then
    local saved = ctx.slots and Saving.of_others(ctx, limit.key, rules, place, "slots") or 0
    slots = Slots.free(most, Slots.held(ctx, limit.key) + math.min(saved, most))
  end
  return {starts = pace_room(ctx, limit, rules, place), slots = slots}
end

-- Returns the place at which the tasks of a lane wait, if a key saves for their tenant there, or nil.
local function place_of(ctx, queue, key, lane)
  local group = ctx.several and Lanes.group_of(ctx, queue, key, lane)
  local name = group and redis.call("HGET", ctx.prefix .. Keys.GROUPS .. queue, group)
  local saved = name and Saving.of(ctx, string.match(name, "^[^|]*"))
  return saved and saved.tenant == key and saved.place == Saving.place_of(name, queue) and saved.place or nil
end

-- Returns how many of `tasks` start, with the slots that are free for them, and why not more. `limits` are those of the
-- lane, whose tasks wait at `place`. `it.taken` has by key how many tasks have started, and by `beside KEY` the slots that they
-- take beside one each.
local function share_of(it, tasks, tenant_state, limits, place)
  local most, reason = tenant_state.free, tenant_state.limit == 0 and "paused" or "tier"
  for index = 1, #limits do
    local limit = limits[index]
    limit.rooms = limit.rooms or {}
    local room = limit.rooms[place or ""] or room_of(it.ctx, limit, it.rules, place)
    limit.rooms[place or ""] = room
    local taken, beside = it.taken[limit.key] or 0, it.taken["beside " .. limit.key] or 0
    -- The tasks that go before may take other units, so this is an estimate.
    local left = math.min(room.starts - taken, math.floor((room.slots - taken - beside) / Slots.of_task(limit)))
    if left < most then
      most, reason = math.max(0, left), REASONS[room.why] or string.sub(limit.key, 1, 6) == "queue:" and "queue" or "limit"
    end
  end
  local starts = math.min(tasks, most)
  tenant_state.free = tenant_state.free - starts
  for index = 1, #limits do
    local key = limits[index].key
    it.taken[key] = (it.taken[key] or 0) + starts
    local beside = starts * (Slots.of_task(limits[index]) - 1)
    if beside > 0 then it.taken["beside " .. key] = (it.taken["beside " .. key] or 0) + beside end
  end
  return starts, reason
end

local function tenant_state_of_task(it, task)
  if it.tenant_states[task.key] then return it.tenant_states[task.key] end
  local tier = redis.call("HGET", it.ctx.prefix .. Keys.TENANT_STATE .. task.key, "tier")
  return tenant_state_of(it, task.key, tier or task.tier, task.tenant)
end

-- Returns the tier by which a task's tenant is checked now.
function Backlog.tier_of(it, task)
  return tenant_state_of_task(it, task).tier
end

-- Returns why the limits of a task let no task start now, and the key of the first such limit. Returns nil if one may.
function Backlog.closed_by(it, task)
  local tenant_state = tenant_state_of_task(it, task)
  if tenant_state.free <= 0 then
    return tenant_state.closes or tenant_state.limit == 0 and "paused" or "concurrency", task.key
  end
  local limits = Limits.limits_now(it.ctx, Pick.with_queue_limit(it.ctx, task.queue, task.limits), it.rules)
  for index = 1, #limits do
    local limit = limits[index]
    if limit.closed == nil then
      local _, _, why = Limits.wait_ms(it.ctx, limit, it.rules)
      limit.closed = why and Limits.strategy_of(why) or false
    end
    if limit.closed then return limit.closed, limit.key end
  end
end

-- Returns the server time since when the task of a lane at an index waits, or "".
local function since_of(ctx, queue, key, lane, index)
  local tag = redis.call("ZRANGE", ctx.prefix .. Lanes.tags_name(key, lane, queue), index, index)[1]
  local head = tag and redis.call("HGET", ctx.prefix .. Keys.TASKS, tag)
  return head and Tasks.put_of(head) or ""
end

-- Adds tasks of a lane to the reason for which they wait. `part` has the queue, the key and the lane, and the index at
-- which the first of the tasks stands there.
local function add(it, found, part, reason, tasks)
  if tasks <= 0 then return end
  local row = found.by_reason[reason]
  if not row then
    row = {reason, 0, ""}
    found.by_reason[reason], found.rows[#found.rows + 1] = row, row
  end
  row[2] = row[2] + tasks
  row[3] = Backlog.older(row[3], since_of(it.ctx, part.queue, part.key, part.lane, part.index))
end

-- Returns the earlier one of two times as text. "" is an unknown time.
function Backlog.older(one, other)
  if one == "" or other ~= "" and tonumber(other) < tonumber(one) then return other end
  return one
end

--[[
  Returns what a tenant has waiting in a queue: KEY, TIER, WEIGHT, LIMIT, HELD, WAITING, STARTABLE, STATE, SINCE, REASONS.

  - LIMIT      its concurrency now, -1 is unlimited
  - WAITING    its waiting tasks in the queue
  - STARTABLE  how many of them free places could start now
  - STATE      why no more of its tasks could start: "ready" if all could, "tier" at its tier's limit, "paused", or
               "limit" if another limit blocks them
  - SINCE      server time in ms since when its first task waits, or "" if that is not known
  - REASONS    rows [REASON, TASKS, SINCE]: "ready", "tier", "limit", "queue", "paused" or "cool_down"
]]
function Backlog.tenant_row(it, queue, key)
  local ctx, rules = it.ctx, it.rules
  local fields = redis.call("HMGET", ctx.prefix .. Keys.TENANT_STATE .. key, "tier", "tenant", "q:" .. queue)
  local waiting, tenant_state = tonumber(fields[3] or 0), tenant_state_of(it, key, fields[1] or "", fields[2] or "")
  local lanes, left = Lanes.all_of(ctx, key, queue, LANES_OF_TENANT), waiting
  local found = {rows = {}, by_reason = {}}
  it.lanes = it.lanes + #lanes
  for index = 1, #lanes do
    local lane = lanes[index]
    local tasks = index == #lanes and left or math.min(left, Lanes.length_of(ctx, queue, key, lane))
    local specs = Pick.with_queue_limit(ctx, queue, Lanes.first_limits(ctx, queue, key, lane))
    local limits = Limits.limits_now(ctx, specs, rules)
    local starts, reason = share_of(it, tasks, tenant_state, limits, place_of(ctx, queue, key, lane))
    left = left - tasks
    add(it, found, {queue = queue, key = key, lane = lane, index = 0}, "ready", starts)
    add(it, found, {queue = queue, key = key, lane = lane, index = starts}, reason, tasks - starts)
  end
  local ready, state, since = found.by_reason.ready, "ready", ""
  local startable = ready and ready[2] or 0
  if tenant_state.limit == 0 then
    state = "paused"
  elseif found.by_reason.tier then
    state = "tier"
  elseif startable < waiting then
    state = "limit"
  end
  for index = 1, #found.rows do since = Backlog.older(since, found.rows[index][3]) end
  return {key, tenant_state.tier, tenant_state.weight, tenant_state.limit, tenant_state.held, waiting, startable, state, since,
    found.rows}
end

-- Adds rows of tenants until a call has looked at `most` lanes, one at least.
local function add_rows(it, queue, keys, most)
  local rows = {}
  for index = 1, #keys do
    if index > 1 and it.lanes >= most then break end
    rows[index] = Backlog.tenant_row(it, queue, keys[index])
  end
  return rows
end

-- Returns the rows of active and of blocked tenants, as far as the lanes of a call allow. Blocked ones get the lanes
-- that active ones leave, half of them at least if they need as many.
function Backlog.rows_of(it, queue, active, blocked)
  local left = Backlog.LANES_AT_MOST - it.lanes
  local of_active = math.max(left / 2, left - #blocked)
  return add_rows(it, queue, active, it.lanes + of_active), add_rows(it, queue, blocked, Backlog.LANES_AT_MOST)
end
