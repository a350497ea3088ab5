--[[
  report: store what an API has reported about its own limit (reports.lua), and let the key cool down if it demands that.

  The argument is a JSON object:
  key          of the limits; not of a tenant
  cool_ms      for how long nothing may start; absent if the API does not demand it
  left         how many starts are free; absent if the API has not reported it
  left_ms      for how long that holds
  reason       for the event of a cool-down
  lease_ms     how long a lease lives without a renewal
  frozen_ms    "" in production (server TIME); set only by tests

  Returns JSON:
  - now_ms    the server's time
  - cool_ms   how long the key still cools down, 0 if it does not
  - reported  [LEFT, UNTIL_MS]: how many starts are free by the reports, and the server time until which; absent without
              a report
]]
register_json("report", {"allow-oom"}, function(ctx, wanted)
  local key = wanted.key
  local logical, now = Clock.tick(ctx, wanted.lease_ms, wanted.frozen_ms)
  local rules = {logical = logical, now = now}
  if wanted.left then Reports.note(ctx, key, wanted.left, wanted.left_ms, rules) end
  if wanted.cool_ms then Reports.cool(ctx, key, logical + wanted.cool_ms, wanted.reason, rules) end
  local cooled = tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.COOL_DOWNS, key) or 0)
  return {now_ms = now, cool_ms = math.max(0, cooled - logical), reported = Reports.shown(ctx, key, rules)}
end)
