--[[
  put: a task begins to wait, in its lane or until its time.

  A put that is sent again does nothing while the task is known. A message that a stock producer has
  left in a plain list leaves it in the same call, whatever becomes of the task; where it is gone
  from there another call has put it.

  A task of whom, or of whose queue, as many wait as may is refused, and nothing is written. What was
  accepted before is not: a retry, what lies in a plain list, what waits for its time.

  KEYS[1]  prefix     str  what every key of the installation begins with

  ARGV[1]  queue      str  where it waits
  ARGV[2]  tag        str  its delivery tag
  ARGV[3]  tenant     str  as it is written in keys; "" is a system task
  ARGV[4]  service    str  "" unless each service counts apart
  ARGV[5]  tier       str  the tenant's tier as the producer knows it, may be ""
  ARGV[6]  rank       str  0 to 9; 9 goes first
  ARGV[7]  cost       int  what the tenant is charged, before the weight; it may have a fraction
  ARGV[8]  eta_ms     int  server time before which it does not start; 0: none
  ARGV[9]  message    str  as the producer sent it
  ARGV[10] frozen_ms  str  "" in production (server TIME); set only by tests
  ARGV[11] bindings   str  the key of the exchange's bindings, or "": the caller looked them up
  ARGV[12] kind       str  name of the task as it is written in keys; "": nobody knows
  ARGV[13] plain      str  the key of the plain list that the message is taken from, or ""
  ARGV[14] entry      str  what lies there
  ARGV[15] limits     str  those beside the tier's (limits.lua), or ""
  ARGV[16] default_tier  str  for a tier that is not known; "": it was accepted before
  ARGV[17] of_tier    str  how many of the tenant may wait where no tiers are published, or ""
  ARGV[18] of_queue   str  how many may wait in the queue, or ""
  ARGV[19] expires_ms int  server time from which it does not start any more; 0: none
  ARGV[20] is_new     str  "1" where its limits are the newest of their keys (declared.lua), else ""
  ARGV[21+] bound     str  the bindings that the caller knows, each as kombu writes it

  Returns what became of it; {key, limit, waiting} of what has no room for it.
    1 WAITS   2 WAITS_FOR_ITS_TIME   0 KNOWN   3 BINDINGS_CHANGED   4 GONE
]]
--- @include "backlog"
--- @include "declared"
--- @include "partition"
--- @include "waiting"
--- @include "until"
--- @include "now"
local told
--- @later told "watched"
local prefix = KEYS[1]
local queue, tag, tenant, service, tier = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local rank, message, frozen_ms = ARGV[6], ARGV[9], ARGV[10]
local cost, eta_ms = tonumber(ARGV[7]), tonumber(ARGV[8])
local bindings, kind, plain, entry, limits = ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15]
local default_tier, of_tier, of_queue = ARGV[16], ARGV[17], ARGV[18]
local expires_ms = tonumber(ARGV[19])
local is_new = ARGV[20] ~= ""

-- Once something is written nothing is undone: a record that nobody can read would stop its queue.
local words = table.concat({tag, tenant, service, tier, rank, kind, limits}, " ")
if not (string.match(words, "^%S+ %S* %S* %S* %d %S* %S*$") and cost and eta_ms and expires_ms) then
  return redis.error_reply("put: expected words without a space and numbers, got: " .. words)
end

-- kombu's table, which other producers and consumers write: as many as are known, and the same.
if bindings ~= "" then
  if redis.call("SCARD", bindings) ~= #ARGV - 20 then return 3 end
  for index = 21, #ARGV do
    if redis.call("SISMEMBER", bindings, ARGV[index]) == 0 then return 3 end
  end
end
local task = {
  tag = tag, attempt = 0, deaths = 0, cost = cost, rank = rank, tenant = tenant, service = service,
  tier = tier, kind = kind, limits = limits, key = key_of(tenant, service),
}
local now = server_now(frozen_ms)
local said = redis.call("HMGET", prefix .. "clock", "watched", "queued", "ranked")
local watched, queued = said[1], said[2]
ranked = said[3]
local is_later = eta_ms > now
if default_tier ~= "" and plain == "" and not is_later then
  local full = full_of(prefix, queue, task, default_tier, of_tier, of_queue)
  if full and redis.call("SISMEMBER", prefix .. "known", tag) == 0 then return full end
end
-- It is the first write: Redis refuses none that comes after it, also where its memory is full.
if plain ~= "" and redis.call("LREM", plain, -1, entry) == 0 then return 4 end
if redis.call("SADD", prefix .. "known", tag) == 0 then return 0 end
local changed = declare(prefix, limits, is_new)
look_again(prefix, changed)
for index = 1, #changed do
  local waits = redis.call("LINDEX", prefix .. "waited:" .. changed[index], 0)
  if waits then ring_bell(prefix, string.match(waits, "^%S+ (.*)$")) end
end
if queued then task.limits = in_partition(prefix, queue, limits, "") end
if task.limits ~= "" then redis.call("HSET", prefix .. "clock", "limited", 1) end
if tenant == "_invalid" then redis.call("HINCRBY", prefix .. "counts", "invalid", 1) end
task.seq = redis.call("INCR", prefix .. "sequence")
if watched and tonumber(watched) > now then
  told().tell_put(prefix, queue, task, message, math.max(now, eta_ms))
end
if expires_ms > 0 then
  redis.call("HSET", prefix .. "clock", "expiring", 1)
  redis.call("ZADD", prefix .. "expires:" .. queue, expires_ms, tag)
end
if is_later then
  -- What ends before its time is looked at then.
  wait_until(prefix, queue, task, message, expires_ms > 0 and math.min(eta_ms, expires_ms) or eta_ms)
  return 2
end
if expires_ms > 0 then
  enqueue_expiring(prefix, queue, task, message, true, now)
else
  enqueue(prefix, queue, task, message, true, now)
end
return 1
