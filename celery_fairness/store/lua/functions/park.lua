--[[
  park: keep the message of a task that a gate rejected, until its limits open.

  If its limits are open by now, nothing is kept. So no end of a lease between the rejection and this call is
  missed. A copy that waited before takes its old place.

  keys[1]  prefix        str  what every key of the installation begins with

  args[1]  lease_ms      int  how long a lease lives without a renewal
  args[2]  key           str  of the tenant's tier limit; "" is a system task
  args[3]  tenant_key    str  of the tenant's record, without the prefix
  args[4]  tier          str  the tenant's tier as the caller holds it
  args[5]  concurrency   str  that tier's, as the caller holds it (an integer, "unlimited" or "")
  args[6]  default_tier  str  for a tier that is not known
  args[7]  default_limit str  of the default tier, an integer or "unlimited"
  args[8]  tier_waits    str  "1" if a task over its tier's limit waits here
  args[9]  words         str  the limits beside the tier's, or ""
  args[10] tag           str  what all copies of the message have in common
  args[11] serial        str  of the copy that was rejected
  args[12] next_serial   str  one that is never published; it stands for the message here
  args[13] keep_ms       int  how long the memory of copies is kept
  args[14] expires_ms    str  server time from which it does not start any more, or ""
  args[15] message       str  as it is published again
  args[16] broker        str  that the message came from; "" is any
  args[17] id            str  of the task, as it is written in keys, or ""
  args[18] frozen_ms     str  "" in production (server TIME); set only by tests

  Returns a code. ELSEWHERE is the code if tasks of another broker are parked.
    1 PARKED   0 ASK_AGAIN   -2 SUPERSEDED   -3 ELSEWHERE
]]
register("park", {}, function(keys, args)
  local ctx, lease_ms = {prefix = keys[1]}, tonumber(args[1])
  local key, tenant_key, tier, concurrency = args[2], args[3], args[4], args[5]
  local default_tier, default_limit, tier_waits, words = args[6], args[7], args[8], args[9]
  local tag, serial, next_serial, keep_ms = args[10], args[11], args[12], tonumber(args[13])
  local expires_ms, message, broker, id, frozen_ms = args[14], args[15], args[16], args[17], args[18]

  local logical, now, _, said = Clock.tick(ctx, lease_ms, frozen_ms)
  local rules = {logical = logical, now = now, enforcement = "on", steered = said.steered,
    tier_waits = tier_waits == "1", default_tier = default_tier, default_limit = default_limit}
  local copy = ctx.prefix .. "copy:" .. tag
  local gone, memory = Copies.superseded(copy, tag, serial)
  local seq = memory.seq
  if gone then return -2 end
  if not Parked.is_of_broker(said, broker) then return -3 end

  local task = {key = key, tenant_key = tenant_key, tier = tier, concurrency = concurrency}
  local limits = Limits.limits_now(ctx, words, rules)
  -- A task that waited before may take any free slot. A newcomer takes no slot that was promised to another task.
  rules.ahead = said.parked and not seq
  local at, closed_ms, others = Parked.kept_by(ctx, task, limits, rules)
  if others then return 0 end
  if not at and rules.ahead then
    local behind = Parked.queue_of_gate(ctx, key, limits)
    at = behind and (behind.name or behind.key)
  end
  if not at then return 0 end

  seq = seq or Rates.whole(redis.call("INCR", ctx.prefix .. "sequence"))
  Parked.copy_parked(ctx, tag, next_serial, next_serial, seq, memory.told, keep_ms)
  Parked.leave_gate(ctx, key, tag, Parked.parked_places(key, words))
  redis.call("HSET", ctx.prefix .. "clock", "parked", broker ~= "" and broker or said.parked or 1)
  Parked.forget_record(ctx, tag)
  Limits.count_waiting(ctx, Tasks.keys_of(key, words), 1)
  Tasks.add_id(ctx, id, tag)
  redis.call("HSET", ctx.prefix .. "gate_tasks", tag, table.concat(
    {seq, expires_ms, key, tenant_key, tier, concurrency, words, memory.told, id}, " ") .. "\n" .. message)
  if expires_ms ~= "" then redis.call("ZADD", ctx.prefix .. "gate_expires", expires_ms, tag) end
  Parked.wait_at(ctx, {key = key, seq = seq}, tag, at, logical + math.min(closed_ms, Limits.LOOK_AT_LIMIT_MS))
  Parked.ring_gate(ctx)
  return 1
end)
