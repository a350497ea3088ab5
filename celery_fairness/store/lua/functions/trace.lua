--[[
  trace: for some time each put, start and end of a task is written as an event (events.lua).

  A later call with a shorter time does not shorten a longer one. The events are kept for one more hour.

  args[1]  wait_ms    int  for how long from now
  args[2]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns the server's time (ms) until which the events are written.
]]
local KEPT_MS = 3600000

register("trace", {"allow-oom"}, function(keys, args)
  local ctx, wait_ms, frozen_ms = {prefix = keys[1], memo = {}, result = {}}, tonumber(args[1]), args[2]

  local now = Clock.server_now(frozen_ms)
  local known = tonumber(redis.call("HGET", ctx.prefix .. Keys.CLOCK, "traced") or 0)
  local ends_ms = math.max(known, now + wait_ms)
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "traced", string.format("%.0f", ends_ms))
  if known <= now then Events.append_trace(ctx, "trace.started", "until", string.format("%.0f", ends_ms)) end
  redis.call("PEXPIRE", ctx.prefix .. Keys.TRACE, ends_ms - now + KEPT_MS)
  return ends_ms
end)
