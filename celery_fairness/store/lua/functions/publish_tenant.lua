--[[
  publish_tenant: publish the tier of one tenant, and a number of its own.

  A record without a number of its own is needed only until the cache of every resolver has run out. A record with
  a number stays, because a resolver answers with a tier's name alone.

  A record may have an end. From then on the tenant has the default tier, as if its record were published then. So
  the record is kept until no cache has the tier of before.

  If the call changes something, it writes an event.

  args[1] key          str   of the tenant's tier limit, which is the name of its record too
  args[2] tier         str   "" forgets the tenant
  args[3] concurrency  str   an integer, "unlimited", or "" for the tier's
  args[4] keep_ms      int   how long a record without a number is kept, and any record after its end; 0 is until forgotten
  args[5] ends_ms      str   server time from which the default tier holds, or "" for no end

  Returns the version. The same record again raises it only if the record now ends sooner. The old end is then
  too late for a tenant that was found at its limit. So claims check that tenant again.
]]
register("publish_tenant", {"allow-oom"}, function(keys, args)
  local ctx, key, tier, concurrency = {prefix = keys[1]}, args[1], args[2], args[3]
  local keep_ms, ends_ms = tonumber(args[4]), args[5]
  local tenant, clock = ctx.prefix .. key, ctx.prefix .. Keys.CLOCK

  local before = redis.call("HMGET", tenant, "tier", "concurrency", "ends_ms")
  local same = (before[1] or "") == tier
    and (tier == "" or before[2] == concurrency and (before[3] or "") == ends_ms)
  local left_ms = redis.call("PTTL", tenant)
  local may_expire = concurrency == "" and ends_ms == "" and keep_ms > 0
  local ends_sooner = tier ~= "" and may_expire and (left_ms < 0 or keep_ms < left_ms)
  redis.call("DEL", tenant)
  if tier ~= "" then
    redis.call("HSETNX", clock, "tenant_published", 1)
    redis.call("HSET", tenant, "tier", tier, "concurrency", concurrency)
    if ends_ms ~= "" then
      redis.call("HSET", tenant, "ends_ms", ends_ms)
      redis.call("PEXPIREAT", tenant, string.format("%.0f", ends_ms + keep_ms))
    elseif may_expire then
      redis.call("PEXPIRE", tenant, keep_ms)
    end
  end
  if same and not ends_sooner then return tonumber(redis.call("HGET", clock, "version") or 0) end
  if not same and tier ~= "" then
    Events.write_event(ctx, "fairness.tier_set",
      "key", key, "tier", tier, "concurrency", concurrency)
  elseif not same then
    Events.write_event(ctx, "fairness.tier_cleared", "key", key)
  end
  return redis.call("HINCRBY", clock, "version", 1)
end)
