--[[
  closed: which of its numbers closes a limit, and how much of that is used.
]]
--- @include "blocking"
--- @include "limits"

-- Of a rate and a throttle as much is used as there is.
local function why_closed(prefix, limit, rules)
  local held = redis.call("ZCOUNT", prefix .. "leases:" .. limit.key,
    string.format("(%.0f", rules.logical), "+inf")
  if stopped_ms(prefix, limit, rules) > 0 then
    local strategy = is_paused(prefix, limit, rules) and "paused" or "cool-down"
    return {key = limit.key, strategy = strategy, limit = 0, current = held}
  end
  if limit.concurrency and held >= limit.concurrency then
    return {key = limit.key, strategy = "concurrency", limit = limit.concurrency, current = held}
  end
  local count = redis.call("HGET", prefix .. "window:" .. limit.key, "count")
  for starts, period_ms in windows_of(limit.rates) do
    if rate_wait_ms(prefix, limit.key, tonumber(count), starts, period_ms, rules.logical) > 0 then
      return {key = limit.key, strategy = "rate", limit = starts, current = starts}
    end
  end
  local starts = tonumber(string.match(limit.throttle, "^%d+"))
  return {key = limit.key, strategy = "throttle", limit = starts, current = starts}
end

-- A limit refuses the first task of a part.
local function block_by_limit(prefix, queue, key, part, limit, rules, turns)
  local closed = why_closed(prefix, limit, rules)
  count_exceeded(prefix, closed.strategy, closed.key)
  local task, message, tag = first_of(prefix, queue, key, part)
  if not task then return end
  weigh(turns, units_of(message))
  if task.blocked ~= "" then return end
  tell_blocked(prefix, queue, task, message, closed)
  mark_first(prefix, queue, key, part, task, message, tag)
end
