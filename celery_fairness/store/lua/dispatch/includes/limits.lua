--[[
  limits: what a limit beside the tier's says, what it counts, and when it opens.

  A limit is a word: key|concurrency|rates|throttle|flags. A rate is STARTS/PERIOD_MS, several have a
  + between them; the flags are the first letter of on_limit, and p where the key was made from the
  tenant, g where it is that of the queue as a whole, which a task has only while it runs. Where the
  concurrency is q all numbers are those of its queue (queues.lua). Its name is the word without the
  flags, with a # for each number (shape.lua). Limits of a task have a comma between them.

  `leases:KEY` counts what runs, `window:KEY` and `starts:KEY` what started.
]]
--- @include "numbers"
--- @include "pace"
--- @include "starts"

-- So much of a throttle's interval a promotion is early, for a start may be as late; and where that is less so
-- many ms, but not more than two intervals: what comes so much too soon a gate lets wait.
local EARLY, EARLY_MS = 0.1, 10
-- A lease of the gate may be released without a word: look again so soon.
local LOOK_AT_LIMIT_MS = 1000

-- How many tasks of a gate were promoted under a key and have not come to a gate yet: a newcomer does
-- not take what was given to them.
local function promised(prefix, key, rules)
  if not rules.ahead then return 0 end
  return redis.call("ZCOUNT", prefix .. "gate_promised:" .. key, "(" .. whole(rules.logical), "+inf")
end

-- How many leases of a key live. What takes no lease away within its call may keep that in `rules.held`.
local function held_of(prefix, key, rules)
  local held = rules.held and rules.held[key]
    or redis.call("ZCOUNT", prefix .. "leases:" .. key, "(" .. whole(rules.logical), "+inf")
  if rules.held then rules.held[key] = held end
  return held
end

-- How long a limit is closed: 0 is open, math.huge until something else opens it. How soon a task
-- that is tried again comes, where it is closed; and what closes it: "paused", "cools", "full", "rate"
-- or "throttle".
local function wait_ms(prefix, limit, rules)
  local stopped = stopped_ms(prefix, limit, rules)
  if stopped > 0 then
    local again = stopped == math.huge and TRY_AGAIN_MS or stopped
    return stopped, again, is_paused(prefix, limit, rules) and "paused" or "cools"
  end
  if rules.enforcement ~= "on" then return 0 end
  local wait, again, why, logical = 0, 0, nil, rules.logical
  local ahead = promised(prefix, limit.key, rules)
  if limit.concurrency and held_of(prefix, limit.key, rules) + ahead >= limit.concurrency then
    local of_gate = redis.call("ZRANGEBYSCORE", prefix .. "leases:" .. limit.key,
      "(" .. whole(logical), "(+inf", "WITHSCORES", "LIMIT", 0, 1)[2]
    wait = of_gate and math.min(tonumber(of_gate) - logical, rules.look_ms or LOOK_AT_LIMIT_MS)
      or math.huge
    again, why = TRY_AGAIN_MS, "full"
  end
  if limit.rates == "" and limit.throttle == "" then return wait, again, why end
  local window = redis.call("HMGET", prefix .. "window:" .. limit.key, "count", "ideal")
  if not window[1] and ahead == 0 then return wait, again, why end
  local count, ideal = tonumber(window[1]) or 0, tonumber(window[2]) or logical
  for starts, period_ms in windows_of(limit.rates) do
    -- All of it is promised: of those the first may start now.
    local rate = math.min(LOOK_AT_LIMIT_MS, period_ms)
    if ahead < starts then
      rate = rate_wait_ms(prefix, limit.key, count, starts - ahead, period_ms, logical)
    end
    if rate > 0 then wait, again, why = math.max(wait, rate), math.max(again, rate), why or "rate" end
  end
  for starts, period_ms in windows_of(limit.throttle) do
    local interval = period_ms / starts
    local throttle = ideal + (window[1] and ahead + 1 or ahead) * interval - logical
    if rules.promotes then throttle = throttle - math.max(EARLY * interval, math.min(EARLY_MS, 2 * interval)) end
    if throttle > 0 then wait, again, why = math.max(wait, throttle), math.max(again, throttle), why or "throttle" end
  end
  return wait, again, why
end

-- What is said of a limit that is closed; nothing of it is left of what was said before in this call.
local function refused_by(limit, action, by, again_ms, why, longest)
  limit.action, limit.by, limit.says, limit.again_ms = action, by and by.key, by, again_ms
  limit.why, limit.longest_ms = why, longest
  return limit
end

-- The first limit that is closed, nil where none is. Where its task shall not wait it says what of it
-- (action, "d" or "r"), by which key (by) and limit (says), and how soon they may be open (again_ms). Where the rules
-- weigh all limits it says too what closes the one that is named (why), and how long all of them do.
local function refusal(prefix, words, rules)
  local limits, at = limits_now(prefix, words, rules), nil
  local weighs = rules.weighs or string.find(words, "|[drq]")
  local action, by, why, again_ms, longest = nil, nil, nil, 0, 0
  for index = 1, #limits do
    local limit = limits[index]
    local wait, again, closes = wait_ms(prefix, limit, rules)
    if wait > 0 then
      at, why = at or limit, why or closes
      if not weighs then return refused_by(at) end
      again_ms, longest = math.max(again_ms, again), math.max(longest, wait)
      local says = limit.on_limit
      if stopped_ms(prefix, limit, rules) == 0 and (says == "r" and not action or says == "d" and action ~= "d") then
        action, by, why = says, limit, closes
      end
    end
  end
  return at and refused_by(at, action, by, again_ms, why, longest)
end

-- Whether this process holds as much as it may of a partition in which a lane is.
local function full_here(prefix, lane, look, rules)
  for word in string.gmatch(string.sub(lane, 3), "[^,]+") do
    local limit = read_limit(word)
    if limit.of_queue then
      use_numbers(prefix, limit, rules)
      local most = limit.of_parts and limit.of_process
      if most and (look.held[limit.key] or 0) >= most then return true end
    end
  end
  return false
end
