--[[
  override: put numbers in the place of a key's own, until a time or until a person clears them.

  Tasks that run continue. If a task that waits at the key may start now, the next claim finds it.

  The argument is a JSON object:
  key          of the limits, or of a tenant, or a pattern
  numbers      as numbers.lua has them, or "" clears them
  lasts_ms     for how long from now; if it is 0, ends_ms has the end
  ends_ms      server time at which they end; absent for no end
  details      text that no function reads
  lease_ms     how long a lease lives without a renewal
  enforcement  "on", "observe" or "off"
  frozen_ms    "" in production (server TIME); set only by tests

  Returns JSON. `is_past` is true if the end is past, and then nothing changed.
]]
register_json("override", {"allow-oom"}, function(ctx, wanted)
  local key, numbers, ends_ms = wanted.key, wanted.numbers, wanted.ends_ms
  local logical, now, _, flags = Clock.tick(ctx, wanted.lease_ms, wanted.frozen_ms)
  local rules = {logical = logical, now = now, enforcement = wanted.enforcement, parked = flags.parked,
    lease_ms = wanted.lease_ms, limited = flags.limited}
  if wanted.lasts_ms > 0 then ends_ms = now + wanted.lasts_ms end
  if ends_ms and ends_ms <= now then return {is_past = true} end
  if numbers ~= "" then
    local ends = ends_ms and string.format("%.0f", ends_ms) or ""
    Config.set_change(ctx, "override", key, ends, numbers .. " " .. wanted.details)
    if Config.is_pattern(key) then redis.call("HSET", ctx.prefix .. Keys.CLOCK, "has_patterns", 1) end
    Events.write_event(ctx, "fairness.override_set", "key", key, "numbers", numbers)
  elseif Config.end_change(ctx, "override", key) then
    Events.write_event(ctx, "fairness.override_ended", "key", key)
  end
  Wake.key_changed(ctx, key, rules)
  Grants.numbers_changed(ctx, key, rules)
  return {is_past = false}
end)
