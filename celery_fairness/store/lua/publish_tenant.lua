--[[
  publish_tenant: news of one tenant: its tier, and a number of its own.

  A record without a number of its own is needed only until every resolver's cache has run out; one
  with a number stays, because a resolver answers with a tier's name alone.

  What changes something is told. The stream lies beside the news, and the tenant's key is that of its
  tier's limit: both are made from these names.

  KEYS[1] tenant       hash  tier, concurrency
  KEYS[2] news         hash  version, source

  ARGV[1] tier         str   "" forgets the tenant
  ARGV[2] concurrency  str   an integer, "unlimited", or "" for the tier's
  ARGV[3] keep_ms      int   how long a record without a number is kept; 0: until forgotten

  Returns the version, which the same record again does not raise.
]]
--- @include "stream"
local tenant, news = KEYS[1], KEYS[2]
local tier, concurrency, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local before = redis.call("HMGET", tenant, "tier", "concurrency")
local same = (before[1] or "") == tier and (tier == "" or (before[2] or "") == concurrency)
redis.call("DEL", tenant)
if tier ~= "" then
  redis.call("HSET", tenant, "tier", tier, "concurrency", concurrency)
  if concurrency == "" and keep_ms > 0 then redis.call("PEXPIRE", tenant, keep_ms) end
end
if same then return tonumber(redis.call("HGET", news, "version") or 0) end
local prefix = string.sub(news, 1, -1 - #"news")
local key = string.sub(tenant, #prefix + 1)
if tier ~= "" then
  append_event(prefix .. "events", "fairness.tier_set",
    "key", key, "tier", tier, "concurrency", concurrency)
else
  append_event(prefix .. "events", "fairness.tier_cleared", "key", key)
end
return redis.call("HINCRBY", news, "version", 1)
