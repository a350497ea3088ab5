--[[
  leases: each task that runs holds one, whichever broker had its message.

  Its row is in `running` (tasks.lua), its end in `ends`, and it has a slot of each key in which it counts (slots.lua).

  A claim names its lease `TAG.ATTEMPT.NONCE`, and the nonce is that of its owner. If Redis comes back with an older
  memory, it gives the same attempt to another worker. The nonce keeps the end and the renewals of the first
  worker away from that lease. The task of any other lease is not here: another broker has its message, or a memory
  that is lost had it. Such a lease is held: its row is under its own name, and its end only frees its keys.
]]

-- A renewal and a start at a gate end at most this many leases that nobody renewed.
Leases.ENDED_AT_MOST = 64

-- The task of a lease that was registered again. Redis has lost its names.
Leases.UNKNOWN = {id = "", name = "", queue = ""}

-- Returns the worker that a lease of a gate names, or nil. A field of a row has no space.
function Leases.worker_of(lease)
  return string.match(lease, "^([^@%s]+)@")
end

-- A lease begins whose task is not here. `held` has these fields:
-- - lease: its name
-- - keys: those in which it counts, with commas between them
-- - limits: those of the task, "" if they are not known
-- - task: its id, its name and its queue
-- - amounts: those of its limits by key as texts, or nil (tasks.lua)
-- - ends_at: the logical time at which the lease ends, as a text
--
-- Returns false if the lease is held already.
function Leases.hold(ctx, held, rules)
  local lease, keys, task = held.lease, held.keys, held.task
  if not string.match(keys, "^tenant:") and not string.match(keys, "^" .. Tasks.SYSTEM) then
    keys = Tasks.SYSTEM .. "," .. keys
  end
  if string.find(keys, ",", 1, true) then Clock.note_limited(ctx, rules) end
  if redis.call("ZADD", ctx.prefix .. Keys.ENDS, "NX", held.ends_at, lease) == 0 then return false end
  local row = {attempt = 0, nonce = 0, owner = Leases.worker_of(lease) or "-", state = "held",
    since = Start.since_now(ctx, rules, task.name), keys = keys, amounts = held.amounts, charge = held.limits,
    name = task.name, id = task.id, queue = task.queue}
  for key in string.gmatch(keys, "[^,]+") do Slots.take(ctx, key, lease, rules, Slots.of_lease(held.amounts, key)) end
  Tasks.write_running(ctx, lease, row)
  WorkerLimit.count(ctx, row, 1)
  return true
end

-- A claim gives a worker a lease that this worker has registered again. That happens if an older memory gives the
-- worker its own task. The lease then has the row of the claim alone. Returns the keys and the amounts of both rows. Those
-- of the claim count where both have a key.
function Leases.join_held(ctx, lease, keys, amounts)
  local row = Tasks.read_held(ctx, lease)
  if not row then return keys, amounts end
  redis.call("HDEL", ctx.prefix .. Keys.RUNNING, lease)
  WorkerLimit.count(ctx, row, -1)
  local own = "," .. keys .. ","
  for key in string.gmatch(row.keys, "[^,]+") do
    if string.find(own, "," .. key .. ",", 1, true) then
      -- The lease stood at the key, so the claim has added nothing there.
      Slots.add_beside(ctx, key, Slots.of_lease(amounts, key) - Slots.of_lease(row.amounts, key))
    else
      keys = keys .. "," .. key
      if row.amounts and row.amounts[key] then
        amounts = amounts or {}
        amounts[key] = row.amounts[key]
      end
    end
  end
  return keys, amounts
end

-- Removes the lease from every key that holds it. `field` is that of its row. `at` is the logical time at which the
-- lease ended, if that is not now.
function Leases.end_lease(ctx, lease, field, row, rules, at)
  redis.call("HDEL", ctx.prefix .. Keys.RUNNING, field)
  redis.call("ZREM", ctx.prefix .. Keys.ENDS, lease)
  for key in string.gmatch(row.keys, "[^,]+") do Slots.give(ctx, key, lease, Slots.of_lease(row.amounts, key)) end
  if Promotions.is_promotion(row) then Promotions.release(ctx, lease, row) end
  if rules.has_backoff then Backoff.note_end(ctx, row, at or rules.logical) end
  Leases.freed(ctx, row.keys)
end

-- Ends a lease whose task is not here. Returns whether it was held.
function Leases.end_held(ctx, rules, lease, outcome, at)
  local row = Tasks.read_held(ctx, lease)
  if not row then return false end
  Leases.end_lease(ctx, lease, lease, row, rules, at)
  WorkerLimit.count(ctx, row, -1)
  -- As for a start, a lease without a task is not counted.
  if row.id ~= "" and (Stats.RAN[outcome] or outcome == "died" or outcome == "expired") then
    Stats.note_end(ctx, Stats.RAN[outcome] and outcome or "failed", row.queue)
  end
  -- No forecast uses the slots of a tenant alone.
  if Stats.RAN[outcome] and row.name ~= "" and string.find(row.keys, ",", 1, true) then
    Start.note_run_time(ctx, rules, row.name, row.since)
  end
  if rules.traced then Events.emit_gate_ended(ctx, row, outcome, at or rules.logical) end
  return true
end

-- A lease of these keys has ended. The keys have commas between them, and the tenant's comes first. When a call
-- has received all ends, open_freed looks at what waits for the keys.
function Leases.freed(ctx, keys)
  local freed = ctx.result.freed or {}
  ctx.result.freed = freed
  freed[#freed + 1] = keys
end

function Leases.open_freed(ctx, rules)
  local ended = ctx.result.freed
  if not ended then return end
  ctx.result.freed = nil
  if rules.limited then return Wake.free_keys(ctx, ended, rules) end
  for index = 1, #ended do Tenants.unblock(ctx, string.match(ended[index], "^[^,]+"), rules) end
end

-- Ends what is over, at most `most` per call. These are leases that nobody renewed, and tenants at their limit whose
-- tier record has expired. An entry of such a tenant is its key with a space before it. Returns how many ended.
function Leases.expire(ctx, rules, most)
  local ended = redis.call(
    "ZRANGEBYSCORE", ctx.prefix .. Keys.ENDS, "-inf", rules.logical, "WITHSCORES", "LIMIT", 0, most)
  local held = 0
  for index = 1, #ended, 2 do
    local lease = ended[index]
    local row, tag = Tasks.read_running(ctx, lease)
    if row then
      Settle.expire_one(ctx, rules, lease, row, tag)
    elseif Leases.end_held(ctx, rules, lease, "expired", tonumber(ended[index + 1])) then
      held = held + 1
    else
      redis.call("ZREM", ctx.prefix .. Keys.ENDS, lease)
      local key = string.match(lease, "^ (.*)$")
      if key then Tenants.unblock(ctx, key, rules) end
    end
  end
  if held > 0 then redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "expired", held) end
  if #ended > 0 then Stats.write_minute(ctx, rules) end
  Leases.open_freed(ctx, rules)
  return #ended / 2
end

--[[
  take_limits: a task starts, and its limits count its lease and its start.

  If somebody waits at a shared limit, the virtual time at which the tenant is due there next is noted too.
]]

-- One start clears away at most this many tags whose time is over.
local CLEAR_TAGS_AT_MOST = 4
-- A key keeps this many tags. If it has more, its virtual time goes on to the least one.
local TAGS_AT_MOST = 1000

-- A tenant started something under a key, whose virtual time is `virtual`. Returns when it is due there next.
function Leases.charge_shared(ctx, limit_key, key, virtual, amount)
  local tags = ctx.prefix .. Keys.FINISH_TAGS .. limit_key
  local start = Blocked.shared_start(ctx, limit_key, key, virtual)
  if start ~= tonumber(virtual) then
    redis.call("HSET", ctx.prefix .. Keys.VIRTUAL_TIMES, "limit " .. limit_key, string.format("%.17g", start))
  end
  local is_new = redis.call("ZADD", tags, start + amount, key) == 1
  local passed = redis.call("ZRANGEBYSCORE", tags, "-inf", start, "LIMIT", 0, CLEAR_TAGS_AT_MOST)
  if #passed > 0 then
    redis.call("ZREM", tags, unpack(passed))
  elseif is_new and redis.call("ZCARD", tags) > TAGS_AT_MOST then
    redis.call("HSET", ctx.prefix .. Keys.VIRTUAL_TIMES, "limit " .. limit_key, redis.call("ZPOPMIN", tags)[2])
  end
  return start + amount
end

-- Returns the amounts of a task by key as texts, with those of a limit, or nil if each is 1.
function Leases.add_amounts(amounts, limit)
  if not limit.units and not limit.slots then return amounts end
  local slots = Slots.of_task(limit)
  local text = Numbers.amounts_of({units = limit.units, slots = slots > 1 and slots or nil})
  if not text then return amounts end
  amounts = amounts or {}
  amounts[limit.key] = text
  return amounts
end

-- Returns whether one of these limits counts starts. If three keys have no rate, one question for all of them saves 2.4 %
-- of a claim of one.
local function any_counts(ctx, limits)
  local windows = {}
  for index = 1, #limits do
    local limit = limits[index]
    if limit.rate ~= "" or limit.throttle ~= "" then return true end
    windows[index] = ctx.prefix .. Keys.WINDOW .. limit.key
  end
  return redis.call("EXISTS", unpack(windows)) > 0
end

-- A task with these limits starts, or is promoted with this lease. Rates and throttles count its start, or reserve it.
local function count_starts(ctx, limits, lease, rules)
  if not any_counts(ctx, limits) then return end
  for index = 1, #limits do
    if rules.promotes then
      Promotions.reserve(ctx, limits[index], lease, rules)
    else
      Rates.count_start(ctx, limits[index], rules)
      Lots.take(ctx, limits[index], rules)
    end
  end
end

-- A task without limits starts. The rate and the throttle of its tenant count it.
function Leases.take_pace(ctx, lease, rules, verdict)
  Tenants.note_paced(ctx, rules)
  count_starts(ctx, {verdict.counts}, lease, rules)
end

-- A task starts. Its limits count it, and the times at which its tenant is due at them next are noted.
function Leases.take_limits(ctx, task, lease, rules, amount, verdict)
  local own = Limits.limits_now(ctx, task.limits, rules)
  local limits, fields = Rates.of_one_key(own), {}
  for index = 1, #limits do fields[index] = "limit " .. limits[index].key end
  local virtual = redis.call("HMGET", ctx.prefix .. Keys.VIRTUAL_TIMES, unpack(fields))
  if verdict.pace then Tenants.note_paced(ctx, rules) end
  count_starts(ctx, Tenants.counting(verdict, own), lease, rules)
  task.due_at = {}
  for index = 1, #limits do
    local limit = limits[index]
    Slots.take(ctx, limit.key, lease, rules, Slots.of_task(limit))
    task.amounts = Leases.add_amounts(task.amounts, limit)
    Backoff.note_begin(ctx, limit, rules)
    if virtual[index] and not limit.private then
      task.due_at[limit.key] = Leases.charge_shared(ctx, limit.key, task.key, virtual[index], amount)
    end
  end
end
