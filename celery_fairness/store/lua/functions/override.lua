--[[
  override: put numbers in the place of a key's own, until a time or until a person clears them.

  Tasks that run continue. If a task that waits at the key may start now, the next claim finds it.

  args[1]  key            str  of the limits, or of a tenant
  args[2]  numbers        str  `CONCURRENCY|RATES|THROTTLE` as in config.lua, or "" clears them
  args[3]  lasts_ms       int  for how long from now; if it is 0, ends_ms has the end
  args[4]  ends_ms        str  server time at which they end, or "" for no end
  args[5]  details        str  text that no function reads
  args[6]  lease_ms       int  how long a lease lives without a renewal
  args[7]  enforcement    str  "on", "observe" or "off"
  args[8]  frozen_ms      str  "" in production (server TIME); set only by tests

  Returns a code.
    1 DONE   0 PAST
]]
register("override", {"allow-oom"}, function(keys, args)
  local ctx, key, numbers, lasts_ms = {prefix = keys[1]}, args[1], args[2], tonumber(args[3])
  local ends_ms, details, lease_ms, frozen_ms = args[4], args[5], tonumber(args[6]), args[8]

  local logical, now, _, flags = Clock.tick(ctx, lease_ms, frozen_ms)
  local rules = {logical = logical, now = now, enforcement = args[7], parked = flags.parked}
  if lasts_ms > 0 then ends_ms = string.format("%.0f", now + lasts_ms) end
  if ends_ms ~= "" and tonumber(ends_ms) <= now then return 0 end
  if numbers ~= "" then
    Config.set_change(ctx, "override", key, ends_ms, numbers .. " " .. details)
    Events.write_event(ctx, "fairness.override_set", "key", key, "numbers", numbers)
  elseif Config.end_change(ctx, "override", key) then
    Events.write_event(ctx, "fairness.override_ended", "key", key)
  end
  Wake.key_changed(ctx, key, rules)
  return 1
end)
