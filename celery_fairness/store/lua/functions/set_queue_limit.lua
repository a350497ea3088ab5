--[[
  set_queue_limit: set the limit of a queue, as a whole or for each partition of it (config.lua).

  Tasks that run continue. The next claim checks the tasks that wait by the new numbers.

  args[1]  how          str  "declare", "set", "clear", or "know" before a person pauses or overrides its key
  args[2]  queue        str  whose limit
  args[3]  key          str  of the queue as a whole
  args[4]  shape        str  "whole" or "parts", of what is declared
  args[5]  numbers      str  as config.lua has them, or ""
  args[6]  lease_ms     int  how long a lease lives without a renewal
  args[7]  enforcement  str  "on", "observe" or "off"
  args[8]  frozen_ms    str  "" in production (server TIME); set only by tests

  Returns the row of the queue in `queue_limits`, or "" if it has none now.
]]
register("set_queue_limit", {"allow-oom"}, function(keys, args)
  local ctx, how, queue, key = {prefix = keys[1]}, args[1], args[2], args[3]
  local shape, numbers, lease_ms, frozen_ms = args[4], args[5], tonumber(args[6]), args[8]

  if not (string.match(key, "^queue:[^:%s,|]+$") and string.match(numbers, "^%S*$")) then
    return redis.error_reply("queue: expected a key queue:QUEUE and a spec, got: " .. key .. " " .. numbers)
  end
  local logical, now, _, flags = Clock.tick(ctx, lease_ms, frozen_ms)
  local rules = {logical = logical, now = now, enforcement = args[7], parked = flags.parked}
  local before = Config.queue_row(ctx, queue, rules)
  local declared, set, parts = "", "", false
  if before then declared, set, parts = before.declared, before.set, before.parts end
  if how == "declare" then declared, parts = numbers, shape == "parts" and numbers ~= "" end
  if how == "set" then
    Events.write_event(ctx, "fairness.queue_limit_set", "key", key, "numbers", numbers)
  elseif how == "clear" and set ~= "" then
    Events.write_event(ctx, "fairness.queue_limit_cleared", "key", key)
  end
  if how == "set" or how == "clear" then set = numbers end
  local text = table.concat({declared, set}, " ")
  if before and how == "know" then return redis.call("HGET", ctx.prefix .. Keys.QUEUE_LIMITS, "queue " .. queue) end

  -- A row is needed while a task waits by it, or while its key is paused, cools down or has an override.
  local needed = text ~= " " or how == "know"
    or Config.change_of(ctx, "pause", key, rules)
    or Config.change_of(ctx, "override", key, rules)
    or redis.call("ZSCORE", ctx.prefix .. Keys.COOL_DOWNS, key)
    or redis.call("EXISTS", ctx.prefix .. Keys.AVAILABLE .. queue) == 1
  local version = redis.call("HINCRBY", ctx.prefix .. Keys.CLOCK, "queues_version", 1)
  if not needed then
    redis.call("HDEL", ctx.prefix .. Keys.QUEUE_LIMITS, "queue " .. queue, "key " .. key)
  else
    text = table.concat({key, parts and "parts" or "whole", string.format("%.0f", version), text}, " ")
    redis.call("HSET", ctx.prefix .. Keys.QUEUE_LIMITS, "queue " .. queue, text, "key " .. key, queue)
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "limited", 1)
  end
  rules.rows = nil
  Wake.wake_queue(ctx, queue)
  Wake.reschedule_now(ctx, key, rules)
  return needed and text or ""
end)
