--[[
  why_closed: which of its numbers closes a limit, and how much of that is used.
]]
--- @include "limits"

-- Of a rate and a throttle as much is used as there is. At a gate what is promised to parked tasks
-- counts too; where only that others wait there since longer keeps a task, it is what they wait for:
-- of a limit without numbers, whose stop is over or whose numbers people took away, leases; it says 0.
-- Where one worker runs as many as it may, who found that has said it (gate_here.lua).
local function why_closed(prefix, limit, rules)
  if limit.at then return limit.at end
  local ahead = promised(prefix, limit.key, rules)
  local held = ahead + redis.call("ZCOUNT", prefix .. "leases:" .. limit.key,
    string.format("(%.0f", rules.logical), "+inf")
  if stopped_ms(prefix, limit, rules) > 0 then
    local strategy = is_paused(prefix, limit, rules) and "paused" or "cool-down"
    return {key = limit.key, strategy = strategy, limit = 0, current = held}
  end
  local by_leases = {key = limit.key, strategy = "concurrency", limit = limit.concurrency or 0, current = held}
  if limit.concurrency and held >= limit.concurrency then return by_leases end
  local count = tonumber(redis.call("HGET", prefix .. "window:" .. limit.key, "count")) or 0
  local rate
  for starts, period_ms in windows_of(limit.rates) do
    rate = rate or starts
    local left = starts - ahead
    if left <= 0 or rate_wait_ms(prefix, limit.key, count, left, period_ms, rules.logical) > 0 then
      return {key = limit.key, strategy = "rate", limit = starts, current = starts}
    end
  end
  local starts = tonumber(string.match(limit.throttle, "^%d+"))
  if starts then return {key = limit.key, strategy = "throttle", limit = starts, current = starts} end
  return (limit.concurrency or not rate) and by_leases
    or {key = limit.key, strategy = "rate", limit = rate, current = rate}
end
