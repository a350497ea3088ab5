--[[
  reports: what an API has reported about its own limit.

  `left` of `window:KEY` is `LEFT UNTIL AT`: at AT the API has reported that LEFT more starts are free until UNTIL, both
  logical times. A start takes one. If none is left, the key cools down until UNTIL (config.lua). So a check reads no
  report, and keys without a report cost nothing.

  Invariant: a report only delays. It lets no task start that another number rejects.
]]

-- Reports of one window name its end in whole seconds, and take some time. Ends within this time are of one window.
local SAME_MS = 2000

-- Returns a report with left, until_ms and at.
function Reports.read(text)
  local left, until_ms, at = string.match(text, "^(%d+) (%d+) (%d+)$")
  return {left = tonumber(left), until_ms = tonumber(until_ms), at = tonumber(at)}
end

local function write(ctx, key, report)
  redis.call("HSET", ctx.prefix .. Keys.WINDOW .. key, "left",
    string.format("%.0f %.0f %.0f", report.left, report.until_ms, report.at))
end

-- Lets a key cool down until a logical time, if it does not cool down for longer.
function Reports.cool(ctx, key, until_ms, reason, rules)
  local text = string.format("%.0f", until_ms)
  if redis.call("ZADD", ctx.prefix .. Keys.COOL_DOWNS, "GT", "CH", text, key) == 1 then
    Events.write_event(ctx, "rate_limit.dynamic_adjusted",
      "key", key, "until", string.format("%.0f", rules.now + until_ms - rules.logical), "reason", reason)
  end
  -- With this field, claims look for limits that are closed, and delete the cool-downs that are over.
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "limited", 1)
  ctx.memo.holds = true
end

-- The API has reported that `left` starts are free for `wait_ms`. A report of the same window can only lower the number.
-- A report of an earlier window changes nothing.
function Reports.note(ctx, key, left, wait_ms, rules)
  local window, until_ms = Rates.read(ctx, key), rules.logical + wait_ms
  local known = window.left
  if known and known.until_ms > rules.logical then
    if until_ms < known.until_ms - SAME_MS then return end
    if until_ms <= known.until_ms + SAME_MS then left, until_ms = math.min(left, known.left), known.until_ms end
  end
  window.left = {left = left, until_ms = until_ms, at = rules.logical}
  write(ctx, key, window.left)
  Rates.keep(ctx, key, window, rules.logical)
  if left == 0 then Reports.cool(ctx, key, until_ms, "reported", rules) end
end

-- A task of the key starts.
function Reports.take(ctx, key, window, rules)
  local known = window.left
  if not known or known.left == 0 then return end
  if known.until_ms <= rules.logical then
    window.left = nil
    redis.call("HDEL", ctx.prefix .. Keys.WINDOW .. key, "left")
    return
  end
  known.left = known.left - 1
  write(ctx, key, known)
  if known.left == 0 then Reports.cool(ctx, key, known.until_ms, "reported", rules) end
end

-- The body of a task did not begin, which started at a logical time. The API has not counted it. If the key cools down
-- because of this start, it does so no longer.
function Reports.give_back(ctx, key, window, start)
  local known = window.left
  if not known or start <= known.at then return end
  if known.left == 0 and tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.COOL_DOWNS, key) or 0) == known.until_ms then
    redis.call("ZREM", ctx.prefix .. Keys.COOL_DOWNS, key)
  end
  known.left = known.left + 1
  write(ctx, key, known)
end

-- Returns what people see of a report: how many starts are free, and the server time until which. Returns nil without one.
function Reports.shown(ctx, key, rules)
  local text = redis.call("HGET", ctx.prefix .. Keys.WINDOW .. key, "left")
  local known = text and Reports.read(text)
  if not known or known.until_ms <= rules.logical then return nil end
  return {known.left, rules.now + known.until_ms - rules.logical}
end

-- A person ends the cool-down of a key, so the report ends too.
function Reports.forget(ctx, key)
  redis.call("HDEL", ctx.prefix .. Keys.WINDOW .. key, "left")
end
