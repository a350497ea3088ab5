--[[
  publish_tenant: publish the tier of one tenant, and numbers of its own.

  A record without numbers of its own is needed only until the cache of every resolver has run out. A record with
  numbers stays, because a resolver answers with a tier's name alone.

  A record may have an end. From then on the tenant has the default tier, as if its record were published then. So
  the record is kept until no cache has the tier of before.

  If the call changes something, it writes an event.

  The argument is a JSON object:
  key      of the tenant's tier limit, which is the name of its record too
  tier     "" forgets the tenant
  numbers  its own numbers as numbers.lua has them, or "" for the tier's
  keep_ms  how long a record without numbers is kept, and any record after its end; 0 is until forgotten
  ends_ms  server time from which the default tier holds; absent for no end

  Returns JSON with the `version`. The same record again raises it only if the record now ends sooner. The old end is then
  too late for a tenant that was found at its limit. So claims check that tenant again.
]]
register_json("publish_tenant", {"allow-oom"}, function(ctx, wanted)
  local key, tier, numbers, keep_ms = wanted.key, wanted.tier, wanted.numbers, wanted.keep_ms
  local ends_ms = wanted.ends_ms and string.format("%.0f", wanted.ends_ms) or ""
  local tenant, clock = ctx.prefix .. key, ctx.prefix .. Keys.CLOCK

  local before = redis.call("HMGET", tenant, "tier", "numbers", "ends_ms")
  local same = (before[1] or "") == tier
    and (tier == "" or before[2] == numbers and (before[3] or "") == ends_ms)
  local left_ms = redis.call("PTTL", tenant)
  local may_expire = numbers == "" and ends_ms == "" and keep_ms > 0
  local ends_sooner = tier ~= "" and may_expire and (left_ms < 0 or keep_ms < left_ms)
  redis.call("DEL", tenant)
  if tier ~= "" then
    redis.call("HSETNX", clock, "tenant_published", 1)
    redis.call("HSET", tenant, "tier", tier, "numbers", numbers)
    if ends_ms ~= "" then
      redis.call("HSET", tenant, "ends_ms", ends_ms)
      redis.call("PEXPIREAT", tenant, string.format("%.0f", ends_ms + keep_ms))
    elseif may_expire then
      redis.call("PEXPIRE", tenant, keep_ms)
    end
  end
  if same and not ends_sooner then return {version = tonumber(redis.call("HGET", clock, "version") or 0)} end
  if not same and tier ~= "" then
    Events.write_event(ctx, "fairness.tier_set",
      "key", key, "tier", tier, "numbers", numbers)
  elseif not same then
    Events.write_event(ctx, "fairness.tier_cleared", "key", key)
  end
  return {version = redis.call("HINCRBY", clock, "version", 1)}
end)
