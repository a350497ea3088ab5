--[[
  stop: pause or resume a key, let it cool down, or end its cool-down.

  A later cool-down may make the current one longer, but not shorter. A later pause replaces the earlier one. Tasks
  that run continue. If a task that waits at the key may start now, the next claim finds it.

  The argument is a JSON object:
  how          "pause", "resume", "cool" or "clear"
  key          of the limits, or of a tenant
  wait_ms      for how long from now; a "pause" with 0 lasts until it is resumed
  lease_ms     how long a lease lives without a renewal
  enforcement  "on", "observe" or "off"
  frozen_ms    "" in production (server TIME); set only by tests
  reason       of a cool-down, for its event; may be ""
  by           the person who pauses or resumes it; may be ""
  since_ms     when the pause began in the home, and then ends_ms is its end, absent for no end; absent if it begins now
  ends_ms      see there

  Returns JSON. A field without a value is left out.
  - cool_ms   how long the key still cools down, 0 if it does not
  - pause_ms  how long it is still paused, 0 if it is not; absent if the pause lasts until it is resumed
  - now_ms    the server's time
  - since_ms  the beginning of the pause
  - by        the person who paused it
]]
-- Returns the person of a pause, "SINCE PERSON".
local function person_of(paused_by)
  return string.match(paused_by or "", "^%S+ (.*)$")
end

register_json("stop", {"allow-oom"}, function(ctx, wanted)
  local how, key, wait_ms, by = wanted.how, wanted.key, wanted.wait_ms, wanted.by
  local logical, now, _, flags = Clock.tick(ctx, wanted.lease_ms, wanted.frozen_ms)
  local rules = {logical = logical, now = now, enforcement = wanted.enforcement, parked = flags.parked}
  local before, before_by = Config.paused_ms(ctx, key, rules)
  if how == "cool" then
    Reports.cool(ctx, key, logical + wait_ms, wanted.reason, rules)
  elseif how == "pause" then
    local ends_ms = wanted.ends_ms or wait_ms > 0 and now + wait_ms
    local since = string.format("%.0f %s", wanted.since_ms or now, by)
    Config.set_change(ctx, "pause", key, ends_ms and string.format("%.0f", ends_ms) or "", since)
  elseif how == "clear" then
    Reports.forget(ctx, key)
    if redis.call("ZREM", ctx.prefix .. Keys.COOL_DOWNS, key) == 1 then
      Events.write_event(ctx, "fairness.cool_down_cleared", "key", key)
    end
  else
    Config.end_change(ctx, "pause", key)
  end
  if how ~= "cool" then Wake.key_changed(ctx, key, rules) end
  local cooled = tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.COOL_DOWNS, key) or 0)
  local pause_ms, paused_by = Config.paused_ms(ctx, key, rules)
  if pause_ms > 0 and (pause_ms ~= before or person_of(paused_by) ~= person_of(before_by)) then
    local ends = pause_ms < math.huge and string.format("%.0f", now + pause_ms) or ""
    Events.write_event(ctx, "fairness.paused", "key", key, "until", ends, "by", by)
  elseif pause_ms ~= before then
    Events.write_event(ctx, "fairness.resumed", "key", key, "by", by)
  end
  local since, person = string.match(paused_by or "", "^(%d+) (.*)$")
  return {cool_ms = math.max(0, cooled - logical), pause_ms = pause_ms < math.huge and pause_ms or nil, now_ms = now,
    since_ms = tonumber(since), by = person}
end)
