--[[
  set_queue_limit: set the limit of a queue as a whole, and that of each partition (config.lua).

  Tasks that run continue. The next claim checks the tasks that wait by the new numbers.

  The argument is a JSON object:
  how          "declare", "set", "clear", or "know" before a person pauses or overrides its key, or "copy" for a partition
  queue        whose limit
  key          of the queue as a whole
  numbers      of the queue as a whole, as config.lua has them, or ""
  part         of each partition, likewise
  row          of a copy: the row that the home has, or ""
  before       of a copy: the row that the partition had, or "". If it has another one now, nothing changes
  lease_ms     how long a lease lives without a renewal
  enforcement  "on", "observe" or "off"
  frozen_ms    "" in production (server TIME); set only by tests

  Returns JSON. `row` is the row of the queue in `queue_limits`, absent if it has none now.
]]
register_json("set_queue_limit", {"allow-oom"}, function(ctx, wanted)
  local how, queue, key, numbers, part = wanted.how, wanted.queue, wanted.key, wanted.numbers, wanted.part
  if not (string.match(key, "^queue:[^:%s,|]+$") and string.match(numbers .. part, "^%S*$")) then
    error({err = "queue: expected a key queue:QUEUE and two specs, got: " .. key .. " " .. numbers .. " " .. part})
  end
  local logical, now, _, flags = Clock.tick(ctx, wanted.lease_ms, wanted.frozen_ms)
  local rules = {logical = logical, now = now, enforcement = wanted.enforcement, parked = flags.parked,
    lease_ms = wanted.lease_ms, limited = flags.limited}
  local before = Config.queue_row(ctx, queue)
  local is_stale = how == "copy" and (before and before.text or "") ~= wanted.before
  if before and how == "know" or is_stale then return {row = before and before.text or nil} end
  local texts = before and before.texts or {"", "", "", ""}
  local former = table.concat(texts, " ")
  if how == "set" then
    Events.write_event(ctx, "fairness.queue_limit_set", "key", key, "numbers", numbers, "partition", part)
  elseif how == "clear" and texts[3] .. texts[4] ~= "" then
    Events.write_event(ctx, "fairness.queue_limit_cleared", "key", key)
  end
  if how == "declare" then texts[1], texts[2] = numbers, part end
  if how == "set" or how == "clear" then texts[3], texts[4] = numbers, part end
  if how == "copy" then texts = wanted.row ~= "" and Config.read_queue(wanted.row).texts or {"", "", "", ""} end
  local text = table.concat(texts, " ")

  -- A row is needed while a task waits by it, or while its key is paused, cools down or has an override.
  local needed = table.concat(texts) ~= "" or how == "know" or how == "copy" and wanted.row ~= ""
    or Config.change_of(ctx, "pause", key, rules)
    or Config.change_of(ctx, "override", key, rules)
    or redis.call("ZSCORE", ctx.prefix .. Keys.COOL_DOWNS, key)
    or redis.call("EXISTS", ctx.prefix .. Keys.AVAILABLE .. queue) == 1
  local version = redis.call("HINCRBY", ctx.prefix .. Keys.CLOCK, "queues_version", 1)
  if text ~= former then
    Grants.numbers_changed(ctx, key, rules)
    Grants.numbers_changed(ctx, key .. ":*", rules)
  end
  if not needed then
    redis.call("HDEL", ctx.prefix .. Keys.QUEUE_LIMITS, "queue " .. queue, "key " .. key)
  else
    text = table.concat({key, string.format("%.0f", version), text}, " ")
    redis.call("HSET", ctx.prefix .. Keys.QUEUE_LIMITS, "queue " .. queue, text, "key " .. key, queue)
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "limited", 1)
  end
  ctx.memo.rows = nil
  Wake.wake_queue(ctx, queue)
  Wake.reschedule_now(ctx, key, rules)
  return {row = needed and text or nil}
end)
