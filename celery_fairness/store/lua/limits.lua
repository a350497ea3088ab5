--[[
  limits: the specs of limits besides the tier's, their counts, and the times at which they open.

  A limit is a spec: key|concurrency|rates|throttle|flags. The limits of a task have a comma between them.

  - A rate is STARTS/PERIOD_MS, and several rates have a + between them.
  - The first flag is the first letter of on_limit.
  - The flag p marks a key that was made from the tenant.
  - The flag g marks the limit of the queue as a whole, which a task has only while it runs.
  - If the concurrency is q, all numbers are those of the queue (config.lua).
  - The name of a limit is its spec without the flags, with a # for each number (shape).

  `leases:KEY` counts the tasks that run. `window:KEY` and `starts:KEY` count the tasks that started.
]]

-- A promotion is early by a tenth of a throttle's interval, because a start may be late by as much. If that
-- is less than 10 ms, it is early by 10 ms, but by at most two intervals. The gate lets a task that comes too
-- soon wait for that time.
local EARLY, EARLY_MS = 0.1, 10
-- A promotion may end at any moment, so a limit whose starts are all reserved is looked at again after this time.
local RESERVED_MS = 1000

-- Returns how many leases a key has. A function that removes no lease within its call may keep the number in
-- `rules.held`.
function Limits.held_of(ctx, key, rules)
  local held = rules.held and rules.held[key] or redis.call("ZCARD", ctx.prefix .. Keys.LEASES .. key)
  if rules.held then rules.held[key] = held end
  return held
end

-- Returns four results:
-- - the time for which a limit is closed: 0 if it is open, math.huge if only another event opens it
-- - the time after which a task that is tried again comes, if the limit is closed
-- - the reason: "paused", "cools", "full", "rate" or "throttle"
-- - the number that is used up, if the reason is one of the last three
function Limits.wait_ms(ctx, limit, rules)
  if rules.lets_all_start then return 0 end
  local stopped = Config.stopped_ms(ctx, limit, rules)
  if stopped > 0 then
    local again = stopped == math.huge and Backoff.TRY_AGAIN_MS or stopped
    return stopped, again, Config.is_paused(ctx, limit, rules) and "paused" or "cools"
  end
  if rules.enforcement ~= "on" then return 0 end
  local wait, again, why, number, logical = 0, 0, nil, nil, rules.logical
  if limit.concurrency and Limits.held_of(ctx, limit.key, rules) >= limit.concurrency then
    wait, again, why, number = math.huge, Backoff.TRY_AGAIN_MS, "full", limit.concurrency
  end
  if limit.rates == "" and limit.throttle == "" then return wait, again, why, number end
  local ahead = Promotions.reserved(ctx, limit.key, rules)
  local window = redis.call("HMGET", ctx.prefix .. Keys.WINDOW .. limit.key, "count", "ideal")
  if not window[1] and ahead == 0 then return wait, again, why, number end
  local count, ideal = tonumber(window[1]) or 0, tonumber(window[2]) or logical
  for starts, period_ms in Rates.windows_of(limit.rates) do
    local rate = math.min(RESERVED_MS, period_ms)
    if ahead < starts then
      rate = Rates.rate_wait_ms(ctx, limit.key, count, starts - ahead, period_ms, logical)
    end
    if rate > 0 and not why then why, number = "rate", starts end
    wait, again = math.max(wait, rate), math.max(again, rate)
  end
  for starts, period_ms in Rates.windows_of(limit.throttle) do
    local interval = period_ms / starts
    local throttle = ideal + (window[1] and ahead + 1 or ahead) * interval - logical
    if rules.promotes then throttle = throttle - math.max(EARLY * interval, math.min(EARLY_MS, 2 * interval)) end
    if throttle > 0 and not why then why, number = "throttle", starts end
    wait, again = math.max(wait, throttle), math.max(again, throttle)
  end
  return wait, again, why, number
end

-- Writes why a limit is closed, over everything that this call wrote there before.
function Limits.note_rejection(limit, action, by, again_ms, why, longest)
  limit.action, limit.by, limit.says, limit.again_ms = action, by and by.key, by, again_ms
  limit.why, limit.longest_ms = why, longest
  return limit
end

-- Returns the first closed limit, or nil if all limits are open. If its task must not wait, the limit gets
-- these fields:
-- - action: "d" to drop the task, or "r" to try it again
-- - by: the key of the limit that demands the action
-- - says: that limit
-- - again_ms: the time after which all limits may be open
--
-- It always gets `closes` and `number`, the reason and the number as wait_ms returns them.
--
-- If the call weighs all limits, the limit gets two more fields:
-- - why: the number or the stop that closes the limit in `says`, or the first closed limit
-- - longest_ms: the time for which the closed limits stay closed
function Limits.check(ctx, specs, rules)
  local limits, at = Limits.limits_now(ctx, specs, rules), nil
  local weighs = rules.weighs or string.find(specs, "|[drq]")
  local action, by, why, again_ms, longest = nil, nil, nil, 0, 0
  for index = 1, #limits do
    local limit = limits[index]
    local wait, again, closes, number = Limits.wait_ms(ctx, limit, rules)
    if wait > 0 then
      limit.closes, limit.number = closes, number
      at, why = at or limit, why or closes
      if not weighs then return Limits.note_rejection(at) end
      again_ms, longest = math.max(again_ms, again), math.max(longest, wait)
      local says, is_stopped = limit.on_limit, closes == "paused" or closes == "cools"
      if not is_stopped and (says == "r" and not action or says == "d" and action ~= "d") then
        action, by, why = says, limit, closes
      end
    end
  end
  return at and Limits.note_rejection(at, action, by, again_ms, why, longest)
end

-- A task with a limit of this key begins to wait (by 1), or waits no longer (by -1). `waiting_at` counts these tasks for
-- each key, for people who look.
function Limits.count_waiting(ctx, key, by)
  local waiting_at = ctx.prefix .. Keys.WAITING_AT
  if redis.call("HINCRBY", waiting_at, key, by) <= 0 then redis.call("HDEL", waiting_at, key) end
end

-- Returns whether this process holds as many tasks of one of a lane's partitions as it may.
function Limits.worker_is_full(ctx, specs, skips, rules)
  for spec in string.gmatch(specs, "[^,]+") do
    local limit = Limits.read_limit(spec)
    if limit.of_queue then
      Config.use_queue_numbers(ctx, limit, rules)
      local most = limit.of_parts and limit.of_process
      if most and (skips.held[limit.key] or 0) >= most then return true end
    end
  end
  return false
end

--[[
  numbers: the numbers by which a call checks a limit now.

  They are the newest numbers of its key, the numbers of its queue, or an override that people set.
]]

-- Reads a limit from its spec or its name. A name lacks the size of the numbers. `counts` is true if the
-- limit has a concurrency that is not 0. `asks` is true if the newest numbers of its key hold for it.
function Limits.read_limit(spec)
  local key, concurrency, rates, throttle, flags = string.match(
    spec, "^([^|]*)|([%dq#]*)|([^|]*)|([^|]*)|?(%a*)$")
  local counts = concurrency ~= "" and concurrency ~= "0" and concurrency ~= "q"
  local is_whole = string.sub(flags, 2) == "g"
  return {spec = spec, name = Limits.name_of(spec), key = key, concurrency = tonumber(concurrency),
    rates = rates == "#" and "" or rates, throttle = throttle == "#" and "" or throttle,
    on_limit = string.sub(flags, 1, 1), private = string.sub(flags, 2) == "p", of_queue = concurrency == "q",
    counts = counts, has_rates = rates ~= "", has_throttle = throttle ~= "",
    asks = not is_whole and (counts or rates ~= "" or throttle ~= "")}
end

-- Gives a limit the newest numbers of its key, for each kind of number that the limit has.
function Limits.use_newest(ctx, limit)
  local concurrency, rates, throttle = Config.read_declared(redis.call("GET", ctx.prefix .. Keys.DECLARED .. limit.key))
  if limit.counts then limit.concurrency = tonumber(concurrency) or limit.concurrency end
  if limit.has_rates and rates ~= "" then limit.rates = rates end
  if limit.has_throttle and throttle ~= "" then limit.throttle = throttle end
end

-- Gives a limit the numbers that it has without an override: the newest of its key, or those of its queue.
function Limits.set_own_numbers(ctx, limit, rules)
  if limit.of_queue then Config.use_queue_numbers(ctx, limit, rules) end
  if limit.asks then Limits.use_newest(ctx, limit) end
  return limit
end

-- Gives a limit the numbers by which a call checks it now: its own, or an override that people set. A claim keeps the
-- limit in `rules.limits`, because no number changes within its call.
function Limits.set_numbers(ctx, limit, rules)
  if limit.is_checked then return limit end
  limit.is_checked = true
  Limits.set_own_numbers(ctx, limit, rules)
  Config.replace(limit, Config.has_overrides(ctx, rules) and Config.override_of(ctx, limit.key, rules))
  if rules.limits then rules.limits[limit.spec] = limit end
  return limit
end

function Limits.limit_now(ctx, spec, rules)
  return Limits.set_numbers(ctx, rules.limits and rules.limits[spec] or Limits.read_limit(spec), rules)
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

-- Limits.check has stored what closes the limit. If one worker runs as many tasks as it may, worker_limit.lua has stored
-- the result in `limit.at`. A rate or a throttle counts as used in full. At a gate, starts that are promised to parked
-- tasks count too.
function Limits.why_closed(ctx, limit, rules)
  if limit.at then return limit.at end
  local why, number = limit.closes, limit.number
  if not why then why, number = Limits.cause_of_waiters(limit) end
  if not STRATEGIES[why] then return {key = limit.key, strategy = why, limit = number, current = number} end
  return {key = limit.key, strategy = STRATEGIES[why], limit = number or 0, current = Limits.held_of(ctx, limit.key, rules)}
end

-- Only older tasks at the gate keep a task from starting. Returns the reason and the number for which those wait. If
-- the limit has no numbers, because its stop is over or people removed them, those wait for leases.
function Limits.cause_of_waiters(limit)
  local rate, throttle = Rates.windows_of(limit.rates)(), Rates.windows_of(limit.throttle)()
  if throttle then return "throttle", throttle end
  if rate and not limit.concurrency then return "rate", rate end
  return "full", limit.concurrency
end

--[[
  shape: the spec of a limit without the size of its numbers, which names the place at which its tasks wait.

  `#` stands for a number, and the newest number of the key holds for it (config.lua). A concurrency of 0 stays
  as it is. It stops the tasks that declare it, and no other tasks of the key.
]]

function Limits.mark(number)
  return number == "" and "" or "#"
end

-- Returns limits, or a lane, without the size of their numbers.
function Limits.shape_of(specs)
  return (string.gsub(specs, "|([%dq#]*)|([^|,]*)|([^|,]*)", function(concurrency, rates, throttle)
    if concurrency ~= "0" and concurrency ~= "q" then concurrency = Limits.mark(concurrency) end
    return "|" .. concurrency .. "|" .. Limits.mark(rates) .. "|" .. Limits.mark(throttle)
  end))
end

function Limits.name_of(spec)
  return string.match(Limits.shape_of(spec), "^[^|]*|[^|]*|[^|]*|[^|]*")
end
