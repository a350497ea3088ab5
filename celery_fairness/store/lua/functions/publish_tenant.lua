--[[
  publish_tenant: publish news of one tenant. The news is its tier, and a number of its own.

  A record without a number of its own is needed only until the cache of every resolver has run out. A record with
  a number stays, because a resolver answers with a tier's name alone.

  If the call changes something, it writes an event.

  args[1] key          str   of the tenant's tier limit, which is the name of its record too
  args[2] tier         str   "" forgets the tenant
  args[3] concurrency  str   an integer, "unlimited", or "" for the tier's
  args[4] keep_ms      int   how long a record without a number is kept; 0 is until forgotten

  Returns the version. The same record again raises it only if the record now ends sooner. The old end is then
  too late for a tenant that was found at its limit. So claims judge that tenant again.
]]
register("publish_tenant", {"allow-oom"}, function(keys, args)
  local ctx, key, tier, concurrency, keep_ms = {prefix = keys[1]}, args[1], args[2], args[3], tonumber(args[4])
  local tenant, clock = ctx.prefix .. key, ctx.prefix .. "clock"

  local before = redis.call("HMGET", tenant, "tier", "concurrency")
  local same = (before[1] or "") == tier and (tier == "" or (before[2] or "") == concurrency)
  local left_ms = redis.call("PTTL", tenant)
  local ends_sooner = tier ~= "" and concurrency == "" and keep_ms > 0 and (left_ms < 0 or keep_ms < left_ms)
  redis.call("DEL", tenant)
  if tier ~= "" then
    redis.call("HSET", tenant, "tier", tier, "concurrency", concurrency)
    if concurrency == "" and keep_ms > 0 then redis.call("PEXPIRE", tenant, keep_ms) end
  end
  if same and not ends_sooner then return tonumber(redis.call("HGET", clock, "version") or 0) end
  if not same and tier ~= "" then
    redis.call("HSET", clock, "tenant_published", 1)
    Events.write_event(ctx, "fairness.tier_set",
      "key", key, "tier", tier, "concurrency", concurrency)
  elseif not same then
    Events.write_event(ctx, "fairness.tier_cleared", "key", key)
  end
  return redis.call("HINCRBY", clock, "version", 1)
end)
