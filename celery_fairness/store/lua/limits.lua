--[[
  limits: the specs of limits besides the tier's, their counts, and the times at which they open.

  A limit is a spec: key|numbers|flags. The limits of a task have a comma between them.

  - The numbers are a text as numbers.lua has it.
  - The first flag is the first letter of on_limit.
  - The flag p marks a key that was made from the tenant.
  - The flag g marks the limit of the queue as a whole, which a task has only while it runs.
  - If the numbers are q, they are those of the queue (config.lua).
  - The name of a limit is its spec without the flags, with a # for each number (shape).

  The slots of a key count the tasks that run, each by what it takes (slots.lua), and its window those that started (rates.lua).
]]

-- A promotion is early by a tenth of a throttle's interval, because a start may be late by as much. If that
-- is less than 10 ms, it is early by 10 ms, but by at most two intervals. The gate lets a task that comes too
-- soon wait for that time.
local EARLY, EARLY_MS = 0.1, 10
-- A promotion may end at any moment, so a limit whose starts are all reserved is looked at again after this time.
local RESERVED_MS = 1000

-- `place` is the place at which the task waits, or nil: a key saves for one place (saving.lua). Returns four results:
-- - the time until the rate and the throttle of a limit let one more task start: 0 if they let it start now
-- - the reason: "rate" or "throttle"
-- - the number that is used up
-- - whether only the units that the task takes close the limit, so that it may be open for another task
function Limits.pace_ms(ctx, limit, rules, place)
  if limit.rate == "" and limit.throttle == "" then return 0 end
  local wait, why, number, logical = 0, nil, nil, rules.logical
  local ahead, ahead_units = Promotions.reserved(ctx, limit.key, rules)
  local window = Rates.read(ctx, limit.key)
  local saved, saved_ms = Saving.of_others(ctx, limit.key, rules, place, "units")
  if not window.ideal and ahead == 0 and not saved then return 0 end
  for starts, period_ms in Rates.windows_of(limit.rate) do
    -- A task that takes more than the rate takes all of it.
    local text, units = Rates.text_for(window, period_ms), math.min(limit.units or 1, starts)
    local most = starts - ahead_units
    local rate = Rates.rate_wait_ms(text, most, period_ms, logical, units) or math.min(RESERVED_MS, period_ms)
    if saved then
      local beside = Rates.rate_wait_ms(text, most, period_ms, logical, units + math.min(saved, starts))
      rate = math.max(rate, math.min(beside or math.huge, saved_ms))
    end
    if rate > 0 and not why then why, number = "rate", starts end
    wait = math.max(wait, rate)
  end
  for starts, period_ms in Rates.windows_of(limit.throttle) do
    local interval = period_ms / starts
    local throttle = window.ideal and window.ideal + (ahead + 1) * interval - logical or ahead * interval
    if rules.promotes then throttle = throttle - math.max(EARLY * interval, math.min(EARLY_MS, 2 * interval)) end
    if throttle > 0 and not why then why, number = "throttle", starts end
    wait = math.max(wait, throttle)
  end
  return wait, why, number, why == "rate" and limit.units ~= nil and not saved
end

-- `place` is as for pace_ms. Returns whether the slots of a limit are too few for a task, and whether only those that the
-- task takes are too many, so that the limit may be open for another task.
local function lacks_slots(ctx, limit, rules, place)
  local most = limit.concurrency
  if not most then return false, false end
  if limit.permits then most = math.min(most, limit.permits) end
  local taken = Slots.held(ctx, limit.key) + Slots.of_task(limit)
  local by_slots = taken > most and limit.slots ~= nil
  if not ctx.slots or taken > most and not by_slots then return taken > most, by_slots end
  local saved = Saving.of_others(ctx, limit.key, rules, place, "slots")
  if saved then return taken + math.min(saved, most) > most, false end
  return taken > most, by_slots
end

-- `place` is as for pace_ms. Returns five results:
-- - the time for which a limit is closed: 0 if it is open, math.huge if only another event opens it
-- - the time after which a task that is tried again comes, if the limit is closed
-- - the reason: "paused", "cools", "full", "rate" or "throttle"
-- - the number that is used up, if the reason is one of the last three
-- - whether only the slots and units that the task takes close the limit, so that it may be open for another task
function Limits.wait_ms(ctx, limit, rules, place)
  if rules.lets_all_start then return 0 end
  local stopped = Config.stopped_ms(ctx, limit, rules)
  if stopped > 0 then
    local again = stopped == math.huge and Backoff.TRY_AGAIN_MS or stopped
    return stopped, again, Config.is_paused(ctx, limit, rules) and "paused" or "cools"
  end
  if rules.enforcement ~= "on" then return 0 end
  local wait, why, number, is_by_units = Limits.pace_ms(ctx, limit, rules, place)
  local lacks, of, is_by_lot = Lots.lacking(ctx, limit, rules, place)
  limit.lacks_lot = lacks ~= nil
  local is_full, is_by_slots = lacks_slots(ctx, limit, rules, place)
  if is_full then
    return math.huge, math.max(Backoff.TRY_AGAIN_MS, wait), "full", limit.concurrency,
      is_by_slots and (wait == 0 or is_by_units) and (not lacks or is_by_lot)
  end
  if lacks then return math.huge, math.max(Backoff.TRY_AGAIN_MS, wait), lacks, of, is_by_lot and (wait == 0 or is_by_units) end
  return wait, wait, why, number, is_by_units
end

-- Writes why a limit is closed, over everything that this call wrote there before.
function Limits.note_rejection(limit, action, by, again_ms, why, longest)
  limit.action, limit.by, limit.says, limit.again_ms = action, by and by.key, by, again_ms
  limit.why, limit.longest_ms = why, longest
  return limit
end

-- Returns the first closed limit, or nil if all limits are open. A limit that only the amounts of the task close comes after
-- all others, because other tasks that wait there would wait for this task. `place` is as for wait_ms. The limit gets these
-- fields:
-- - closes, number, opens_ms, by_amount: the reason, the number, the time, and whether only amounts close it (wait_ms)
-- - why: the number or the stop that closes the limit in `says`, or the first closed limit
-- - again_ms: the time after which all limits may be open
-- - longest_ms: the time for which the closed limits stay closed
--
-- If its task must not wait, it gets these fields too:
-- - action: "d" to drop the task, or "r" to try it again
-- - by: the key of the limit that demands the action
-- - says: that limit
function Limits.check(ctx, specs, rules, place)
  local limits, at = Permits.in_order(Limits.limits_now(ctx, specs, rules)), nil
  local action, by, why, again_ms, longest, by_amount, is_short = nil, nil, nil, 0, 0, nil, false
  for index = 1, #limits do
    local limit = limits[index]
    local wait, again, closes, number, is_by_amount = Limits.wait_ms(ctx, limit, rules, place)
    if wait > 0 then
      -- The task requests permits of one key at a time, and of none while it waits for anything before.
      if closes == "full" and limit.permits and not (at or is_short) then
        is_short = true
        Permits.note_short(ctx, limit, rules)
      end
      if limit.lacks_lot then Lots.note_short(ctx, limit, rules) end
      limit.closes, limit.number, limit.opens_ms, limit.by_amount = closes, number, wait, is_by_amount
      if is_by_amount then
        by_amount = by_amount or limit
      else
        at, why = at or limit, why or closes
      end
      again_ms, longest = math.max(again_ms, again), math.max(longest, wait)
      local says, is_stopped = limit.on_limit, closes == "paused" or closes == "cools"
      if not is_stopped and (says == "r" and not action or says == "d" and action ~= "d") then
        action, by, why = says, limit, closes
      end
    end
  end
  at, why = at or by_amount, why or by_amount and by_amount.closes
  return at and Limits.note_rejection(at, action, by, again_ms, why, longest)
end

-- A task with a limit of this key begins to wait (by 1), or waits no longer (by -1). `waiting_at` counts these tasks for
-- each key, for people who look.
function Limits.count_waiting(ctx, key, by)
  local waiting_at = ctx.prefix .. Keys.WAITING_AT
  if redis.call("HINCRBY", waiting_at, key, by) <= 0 then redis.call("HDEL", waiting_at, key) end
end

-- Returns whether this process holds as many tasks of one of a lane's partitions as it may.
function Limits.worker_is_full(ctx, specs, skips)
  for spec in string.gmatch(specs, "[^,]+") do
    local limit = Limits.read_limit(spec)
    if limit.of_queue then
      Config.use_queue_numbers(ctx, limit)
      local most = limit.local_limit
      if most and (skips.held[limit.key] or 0) >= most then return true end
    end
  end
  return false
end

--[[
  numbers: the numbers by which a call checks a limit now.

  They are the newest numbers of its key, the numbers of its queue, or an override that people set.
]]

-- Reads a limit from its spec or its name. A name lacks the size of the numbers. `has` are the numbers that the limit
-- shares with its key. `asks` is true if the newest numbers of its key hold for it. `is_bare` is true if it has no number.
function Limits.read_limit(spec)
  local key, numbers, flags = string.match(spec, "^([^|]*)|([^|]*)|?(%l*)$")
  local flag, has = string.sub(flags, 2), Numbers.read(Numbers.shared(numbers))
  return Numbers.set({spec = spec, name = Limits.name_of(spec), key = key, on_limit = string.sub(flags, 1, 1),
    private = flag == "p", of_queue = numbers == "q", is_bare = numbers == "", has = has, asks = flag ~= "g" and next(has) ~= nil}, numbers)
end

-- Gives a limit the newest numbers of its key, for each kind of number that the limit has.
function Limits.use_newest(ctx, limit)
  local newest = redis.call("GET", ctx.prefix .. Keys.DECLARED .. limit.key)
  if newest then Numbers.use(limit, limit.has, newest) end
end

-- Gives a limit the numbers that it has without an override: the newest of its key, or those of its queue.
function Limits.set_own_numbers(ctx, limit)
  if limit.of_queue then Config.use_queue_numbers(ctx, limit) end
  if limit.asks then Limits.use_newest(ctx, limit) end
  return limit
end

-- Gives a limit the numbers by which a call checks it now: its own, or an override that people set. A claim keeps the
-- limit in `ctx.memo.limits`, because no number changes within its call.
function Limits.set_numbers(ctx, limit, rules)
  if limit.is_checked then return limit end
  limit.is_checked = true
  Limits.set_own_numbers(ctx, limit)
  Config.replace(limit, Config.has_overrides(ctx) and Config.override_of_limit(ctx, limit, rules))
  Permits.set(ctx, limit, rules)
  Lots.set(ctx, limit, rules)
  local known = ctx.memo.limits
  if known then known[limit.spec] = limit end
  return limit
end

function Limits.limit_now(ctx, spec, rules)
  local known = ctx.memo.limits
  return Limits.set_numbers(ctx, known and known[spec] or Limits.read_limit(spec), rules)
end

function Limits.limits_now(ctx, specs, rules)
  local limits = {}
  for spec in string.gmatch(specs, "[^,]+") do limits[#limits + 1] = Limits.limit_now(ctx, spec, rules) end
  return limits
end

--[[
  why_closed: the number that closes a limit, and how much of that number is used.
]]

local STRATEGIES = {paused = "paused", cools = "cool-down", full = "concurrency"}

-- Returns a reason of wait_ms as people see it.
function Limits.strategy_of(why)
  return STRATEGIES[why] or why
end

-- Limits.check has stored what closes the limit. If one worker runs as many tasks as it may, worker_limit.lua has stored
-- the result in `limit.at`. A rate or a throttle counts as used in full. At a gate, starts that are promised to parked
-- tasks count too.
function Limits.why_closed(ctx, limit)
  if limit.at then return limit.at end
  local why, number = limit.closes, limit.number
  if not why then why, number = Limits.cause_of_waiters(limit) end
  if not STRATEGIES[why] then return {key = limit.key, strategy = why, limit = number, current = number} end
  return {key = limit.key, strategy = STRATEGIES[why], limit = number or 0, current = Slots.held(ctx, limit.key)}
end

-- Only older tasks at the gate keep a task from starting. Returns the reason and the number for which those wait. If
-- the limit has no numbers, because its stop is over or people removed them, those wait for leases.
function Limits.cause_of_waiters(limit)
  local rate, throttle = Rates.windows_of(limit.rate)(), Rates.windows_of(limit.throttle)()
  if throttle then return "throttle", throttle end
  if rate and not limit.concurrency then return "rate", rate end
  return "full", limit.concurrency
end

--[[
  shape: the spec of a limit without the size of its numbers, which names the place at which its tasks wait.

  `#` stands for a number, and the newest number of the key holds for it (config.lua).
]]

-- Returns limits, or a lane, without the size of their numbers.
function Limits.shape_of(specs)
  return (string.gsub(specs, "|([^|,]*)(|?[^|,]*)", function(numbers, flags)
    return "|" .. Numbers.shape(numbers) .. flags
  end))
end

function Limits.name_of(spec)
  local key, numbers = string.match(spec, "^([^|]*)|([^|]*)")
  return key .. "|" .. Numbers.shape(numbers)
end
