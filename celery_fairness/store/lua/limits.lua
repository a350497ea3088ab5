--[[
  limits: what a limit beside the tier's says, what it counts, and when it opens.

  A limit is a word: key|concurrency|rates|throttle|flags. A rate is STARTS/PERIOD_MS, several have a
  + between them; the flags are the first letter of on_limit, and p where the key was made from the
  tenant, g where it is that of the queue as a whole, which a task has only while it runs. Where the
  concurrency is q all numbers are those of its queue (config.lua). Its name is the word without the
  flags, with a # for each number (limits.lua). Limits of a task have a comma between them.

  `leases:KEY` counts what runs, `window:KEY` and `starts:KEY` what started.
]]

-- So much of a throttle's interval a promotion is early, for a start may be as late; and where that is less so
-- many ms, but not more than two intervals: what comes so much too soon a gate lets wait.
local EARLY, EARLY_MS = 0.1, 10
-- A lease of the gate may be released without a word: look again so soon.
Limits.LOOK_AT_LIMIT_MS = 1000

-- How many tasks of a gate were promoted under a key and have not come to a gate yet: a newcomer does
-- not take what was given to them.
function Limits.promised(ctx, key, rules)
  if not rules.ahead then return 0 end
  return redis.call("ZCOUNT", ctx.prefix .. "gate_promised:" .. key, "(" .. Rates.whole(rules.logical), "+inf")
end

-- How many leases of a key live. What takes no lease away within its call may keep that in `rules.held`.
function Limits.held_of(ctx, key, rules)
  local held = rules.held and rules.held[key]
    or redis.call("ZCOUNT", ctx.prefix .. "leases:" .. key, "(" .. Rates.whole(rules.logical), "+inf")
  if rules.held then rules.held[key] = held end
  return held
end

-- How long a limit is closed: 0 is open, math.huge until something else opens it. How soon a task
-- that is tried again comes, where it is closed; and what closes it: "paused", "cools", "full", "rate"
-- or "throttle".
function Limits.wait_ms(ctx, limit, rules)
  local stopped = Config.stopped_ms(ctx, limit, rules)
  if stopped > 0 then
    local again = stopped == math.huge and Backoff.TRY_AGAIN_MS or stopped
    return stopped, again, Config.is_paused(ctx, limit, rules) and "paused" or "cools"
  end
  if rules.enforcement ~= "on" then return 0 end
  local wait, again, why, logical = 0, 0, nil, rules.logical
  local ahead = Limits.promised(ctx, limit.key, rules)
  if limit.concurrency and Limits.held_of(ctx, limit.key, rules) + ahead >= limit.concurrency then
    local of_gate = redis.call("ZRANGEBYSCORE", ctx.prefix .. "leases:" .. limit.key,
      "(" .. Rates.whole(logical), "(+inf", "WITHSCORES", "LIMIT", 0, 1)[2]
    wait = of_gate and math.min(tonumber(of_gate) - logical, rules.look_ms or Limits.LOOK_AT_LIMIT_MS)
      or math.huge
    again, why = Backoff.TRY_AGAIN_MS, "full"
  end
  if limit.rates == "" and limit.throttle == "" then return wait, again, why end
  local window = redis.call("HMGET", ctx.prefix .. "window:" .. limit.key, "count", "ideal")
  if not window[1] and ahead == 0 then return wait, again, why end
  local count, ideal = tonumber(window[1]) or 0, tonumber(window[2]) or logical
  for starts, period_ms in Rates.windows_of(limit.rates) do
    -- All of it is promised: of those the first may start now.
    local rate = math.min(Limits.LOOK_AT_LIMIT_MS, period_ms)
    if ahead < starts then
      rate = Rates.rate_wait_ms(ctx, limit.key, count, starts - ahead, period_ms, logical)
    end
    if rate > 0 then wait, again, why = math.max(wait, rate), math.max(again, rate), why or "rate" end
  end
  for starts, period_ms in Rates.windows_of(limit.throttle) do
    local interval = period_ms / starts
    local throttle = ideal + (window[1] and ahead + 1 or ahead) * interval - logical
    if rules.promotes then throttle = throttle - math.max(EARLY * interval, math.min(EARLY_MS, 2 * interval)) end
    if throttle > 0 then wait, again, why = math.max(wait, throttle), math.max(again, throttle), why or "throttle" end
  end
  return wait, again, why
end

-- What is said of a limit that is closed; nothing of it is left of what was said before in this call.
function Limits.refused_by(limit, action, by, again_ms, why, longest)
  limit.action, limit.by, limit.says, limit.again_ms = action, by and by.key, by, again_ms
  limit.why, limit.longest_ms = why, longest
  return limit
end

-- The first limit that is closed, nil where none is. Where its task shall not wait it says what of it
-- (action, "d" or "r"), by which key (by) and limit (says), and how soon they may be open (again_ms). Where the rules
-- weigh all limits it says too what closes the one that is named (why), and how long all of them do.
function Limits.refusal(ctx, words, rules)
  local limits, at = Limits.limits_now(ctx, words, rules), nil
  local weighs = rules.weighs or string.find(words, "|[drq]")
  local action, by, why, again_ms, longest = nil, nil, nil, 0, 0
  for index = 1, #limits do
    local limit = limits[index]
    local wait, again, closes = Limits.wait_ms(ctx, limit, rules)
    if wait > 0 then
      at, why = at or limit, why or closes
      if not weighs then return Limits.refused_by(at) end
      again_ms, longest = math.max(again_ms, again), math.max(longest, wait)
      local says = limit.on_limit
      if Config.stopped_ms(ctx, limit, rules) == 0 and (says == "r" and not action or says == "d" and action ~= "d") then
        action, by, why = says, limit, closes
      end
    end
  end
  return at and Limits.refused_by(at, action, by, again_ms, why, longest)
end

-- Whether this process holds as much as it may of a partition in which a lane is.
function Limits.full_here(ctx, lane, look, rules)
  for word in string.gmatch(string.sub(lane, 3), "[^,]+") do
    local limit = Limits.read_limit(word)
    if limit.of_queue then
      Config.use_numbers(ctx, limit, rules)
      local most = limit.of_parts and limit.of_process
      if most and (look.held[limit.key] or 0) >= most then return true end
    end
  end
  return false
end

--[[
  numbers: by which numbers a limit is judged now.

  Those are the newest of its key, those of its queue, or what people put in their place.
]]

-- As its word or its name says it; its name is without the size of its numbers. `counts` says that it has a concurrency
-- that is not 0, `asks` that the newest numbers of its key hold for it.
function Limits.read_limit(word)
  local key, concurrency, rates, throttle, flags = string.match(
    word, "^([^|]*)|([%dq#]*)|([^|]*)|([^|]*)|?(%a*)$")
  local counts = concurrency ~= "" and concurrency ~= "0" and concurrency ~= "q"
  local is_whole = string.sub(flags, 2) == "g"
  return {word = word, name = Limits.name_of(word), key = key, concurrency = tonumber(concurrency),
    rates = rates == "#" and "" or rates, throttle = throttle == "#" and "" or throttle,
    on_limit = string.sub(flags, 1, 1), private = string.sub(flags, 2) == "p", of_queue = concurrency == "q",
    counts = counts, has_rates = rates ~= "", has_throttle = throttle ~= "",
    asks = not is_whole and (counts or rates ~= "" or throttle ~= "")}
end

-- Reads what keys declare, which no call changes after it has asked.
function Limits.know_declared(ctx, keys, rules)
  rules.declared = rules.declared or {}
  local asked, names = {}, {}
  for index = 1, #keys do
    local key = keys[index]
    if rules.declared[key] == nil and #names < Rates.KEYS_AT_ONCE then
      rules.declared[key] = false
      asked[#asked + 1], names[#names + 1] = key, ctx.prefix .. "declared:" .. key
    end
  end
  if #names == 0 then return end
  local texts = redis.call("MGET", unpack(names))
  for index = 1, #names do rules.declared[asked[index]] = texts[index] end
end

-- A limit gets the newest numbers of its key, of those that it says.
function Limits.use_newest(ctx, limit, rules)
  Limits.know_declared(ctx, {limit.key}, rules)
  local concurrency, rates, throttle = Config.read_declared(rules.declared[limit.key])
  if limit.counts then limit.concurrency = tonumber(concurrency) or limit.concurrency end
  if limit.has_rates and rates ~= "" then limit.rates = rates end
  if limit.has_throttle and throttle ~= "" then limit.throttle = throttle end
end

-- Gives a limit the numbers by which it is judged now: the newest of its key, or those that people put in
-- their place. A claim keeps it in `rules.limits`: within its call no number changes.
function Limits.give_numbers(ctx, limit, rules)
  if limit.is_judged then return limit end
  limit.is_judged = true
  if limit.of_queue then Config.use_numbers(ctx, limit, rules) end
  if limit.asks then Limits.use_newest(ctx, limit, rules) end
  local other = Config.is_steered(ctx, rules) and Config.override_of(ctx, limit.key, rules)
  if other and other.concurrency ~= "-" then limit.concurrency = tonumber(other.concurrency) end
  if other and other.rates ~= "-" then limit.rates = other.rates end
  if other and other.throttle ~= "-" then limit.throttle = other.throttle end
  if rules.limits then rules.limits[limit.word] = limit end
  return limit
end

function Limits.limit_now(ctx, word, rules)
  return Limits.give_numbers(ctx, rules.limits and rules.limits[word] or Limits.read_limit(word), rules)
end

function Limits.limits_now(ctx, words, rules)
  local limits, keys = {}, {}
  for word in string.gmatch(words, "[^,]+") do
    local limit = rules.limits and rules.limits[word] or Limits.read_limit(word)
    limits[#limits + 1] = limit
    if limit.asks and not limit.is_judged then keys[#keys + 1] = limit.key end
  end
  Limits.know_declared(ctx, keys, rules)
  for index = 1, #limits do Limits.give_numbers(ctx, limits[index], rules) end
  return limits
end

--[[
  why_closed: which of its numbers closes a limit, and how much of that is used.
]]

-- Of a rate and a throttle as much is used as there is. At a gate what is promised to parked tasks
-- counts too; where only that others wait there since longer keeps a task, it is what they wait for:
-- of a limit without numbers, whose stop is over or whose numbers people took away, leases; it says 0.
-- Where one worker runs as many as it may, who found that has said it (worker_limit.lua).
function Limits.why_closed(ctx, limit, rules)
  if limit.at then return limit.at end
  local ahead = Limits.promised(ctx, limit.key, rules)
  local held = ahead + redis.call("ZCOUNT", ctx.prefix .. "leases:" .. limit.key,
    string.format("(%.0f", rules.logical), "+inf")
  if Config.stopped_ms(ctx, limit, rules) > 0 then
    local strategy = Config.is_paused(ctx, limit, rules) and "paused" or "cool-down"
    return {key = limit.key, strategy = strategy, limit = 0, current = held}
  end
  local by_leases = {key = limit.key, strategy = "concurrency", limit = limit.concurrency or 0, current = held}
  if limit.concurrency and held >= limit.concurrency then return by_leases end
  local count = tonumber(redis.call("HGET", ctx.prefix .. "window:" .. limit.key, "count")) or 0
  local rate
  for starts, period_ms in Rates.windows_of(limit.rates) do
    rate = rate or starts
    local left = starts - ahead
    if left <= 0 or Rates.rate_wait_ms(ctx, limit.key, count, left, period_ms, rules.logical) > 0 then
      return {key = limit.key, strategy = "rate", limit = starts, current = starts}
    end
  end
  local starts = tonumber(string.match(limit.throttle, "^%d+"))
  if starts then return {key = limit.key, strategy = "throttle", limit = starts, current = starts} end
  return (limit.concurrency or not rate) and by_leases
    or {key = limit.key, strategy = "rate", limit = rate, current = rate}
end

--[[
  shape: a limit's word without the size of its numbers: where its tasks wait.

  `#` stands for a number, for which the newest of its key holds (config.lua). A concurrency of 0 stays:
  it stops the tasks that say it, and no others of the key.
]]

function Limits.mark(number)
  return number == "" and "" or "#"
end

-- Limits, or a lane, as they would be with any other numbers.
function Limits.shape_of(words)
  return (string.gsub(words, "|([%dq#]*)|([^|,]*)|([^|,]*)", function(concurrency, rates, throttle)
    if concurrency ~= "0" and concurrency ~= "q" then concurrency = Limits.mark(concurrency) end
    return "|" .. concurrency .. "|" .. Limits.mark(rates) .. "|" .. Limits.mark(throttle)
  end))
end

-- The name of a limit, by its word.
function Limits.name_of(word)
  return string.match(Limits.shape_of(word), "^[^|]*|[^|]*|[^|]*|[^|]*")
end
