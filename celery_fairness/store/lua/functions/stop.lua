--[[
  stop: pause or resume a key, let it cool down, or end its cool-down.

  A later cool-down may make the current one longer, but not shorter. A later pause replaces the earlier one. Tasks
  that run continue. If a task that waits at the key may start now, the next claim finds it.

  args[1]  how            str  "pause", "resume", "cool" or "clear"
  args[2]  key            str  of the limits, or of a tenant
  args[3]  wait_ms        int  for how long from now; a "pause" with 0 lasts until it is resumed
  args[4]  lease_ms       int  how long a lease lives without a renewal
  args[5]  enforcement    str  "on", "observe" or "off"
  args[6]  frozen_ms      str  "" in production (server TIME); set only by tests
  args[7]  reason         str  of a cool-down, for its event; may be ""
  args[8]  by             str  the person who pauses or resumes it; may be ""

  Returns {cool_ms, pause_ms, now_ms, paused_by}.
  - cool_ms and pause_ms are how long the key still cools down and is paused. 0 is not at all.
  - pause_ms is -1 if the pause lasts until it is resumed.
  - now_ms is the server's time.
  - paused_by has the beginning of the pause and the person, as in config.lua. It is "" without a pause.
]]
-- Returns the person of a pause, "SINCE PERSON".
local function person_of(paused_by)
  return string.match(paused_by or "", "^%S+ (.*)$")
end

register("stop", {"allow-oom"}, function(keys, args)
  local ctx, how, key, wait_ms = {prefix = keys[1]}, args[1], args[2], tonumber(args[3])
  local lease_ms, frozen_ms, reason, by = tonumber(args[4]), args[6], args[7], args[8]

  local logical, now, _, flags = Clock.tick(ctx, lease_ms, frozen_ms)
  local rules = {logical = logical, now = now, enforcement = args[5], parked = flags.parked}
  local before, before_by = Config.paused_ms(ctx, key, rules)
  if how == "cool" then
    local moved = redis.call(
      "ZADD", ctx.prefix .. Keys.COOL_DOWNS, "GT", "CH", string.format("%.0f", logical + wait_ms), key)
    if moved == 1 then
      Events.write_event(ctx, "rate_limit.dynamic_adjusted",
        "key", key, "until", string.format("%.0f", now + wait_ms), "reason", reason)
    end
    -- With this field, claims delete the cool-downs that are over.
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "limited", 1)
  elseif how == "pause" then
    local ends_ms = wait_ms == 0 and "" or string.format("%.0f", now + wait_ms)
    Config.set_change(ctx, "pause", key, ends_ms, string.format("%.0f %s", now, by))
  elseif how == "clear" then
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
  if pause_ms == math.huge then pause_ms = -1 end
  return {math.max(0, cooled - logical), pause_ms, now, paused_by or ""}
end)
