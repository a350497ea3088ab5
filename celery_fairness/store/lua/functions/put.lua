--[[
  put: a task begins to wait, in its lane or until its time.

  While the task is known, a second put of it does nothing. If a stock producer has left the message in a plain
  list, the same call takes it from there in every case. If the message is gone from the list, another call has
  put it.

  If its tenant or its queue has no room for another waiting task, the put rejects the task and writes nothing. It
  never rejects these tasks:
  - a retry, which was accepted before
  - a message from a plain list
  - a task that waits for its time, because it may find no other tasks there when its time has come

  args[1]  queue      str  where it waits
  args[2]  words      str  sixteen, with one space between them:
             tag           its delivery tag
             tenant        as it is written in keys, "" is a system task
             service       "" unless each service counts apart
             tier          the tenant's tier as the producer holds it, may be ""
             rank          0 to 9, and 9 goes first
             cost          what the tenant is charged, before the weight; it may have a fraction
             eta_ms        server time before which it does not start; 0 is none
             expires_ms    server time from which it does not start any more; 0 is none
             id            the task's id as it is written in keys; "" is unknown
             name          the task's name as it is written in keys; "" is unknown
             limits        those beside the tier's (limits.lua), or ""
             default_tier  for a tier that is not known; "" if the task was accepted before
             of_tier       how many of the tenant may wait if no tiers are published, or ""
             of_queue      how many may wait in the queue, or ""
             is_new        "1" if it was not accepted before; then its limits are the newest of their keys (config.lua)
             unique        its unique key and what a duplicate does (unique.lua), or ""
  args[3]  message    str  as the producer sent it
  args[4]  frozen_ms  str  "" in production (server TIME); set only by tests
  args[5]  bindings   str  the key of the exchange's bindings, or "" if the caller looked them up
  args[6]  plain      str  the key of the plain list that the message is taken from, or ""
  args[7]  entry      str  what lies there
  args[8+] bound      str  the bindings that the caller holds, each as kombu writes it

  Returns a code. If a tenant or a queue has no room for the task, returns {key, limit, waiting} of it. If another task
  has its unique key, and the producer wants that task, returns {id} of it.
    1 WAITS   2 WAITS_FOR_ITS_TIME   0 KNOWN   3 BINDINGS_CHANGED   4 GONE   5 STAYS   6 DUPLICATE
  In a partition it is negative if the producer rings the bell of the queue (rings.lua).
]]
local WORDS = "^(%S+) (%S*) (%S*) (%S*) (%d) (%S+) (%S+) (%S+) (%S*) (%S*) (%S*) (%S*) (%d*) (%d*) (1?) (%S*)$"

-- Returns how many tasks of a tenant wait, and the tier of the last put that carried one. The tier is "" if
-- none waits.
local function waiting_of_tenant(ctx, key)
  local waiting, tier = 0, ""
  local fields = redis.call("HGETALL", ctx.prefix .. Keys.TENANT_STATE .. key)
  for index = 1, #fields, 2 do
    if fields[index] == "tier" then tier = fields[index + 1] end
    if string.sub(fields[index], 1, 2) == "q:" then waiting = waiting + tonumber(fields[index + 1]) end
  end
  return waiting, tier
end

-- Returns {key, limit, waiting} of the tenant or queue that has no room for one more. It returns nil if both
-- have room. `rules` has the source of the published tiers, and whether one is bounded. They replace the settings of the
-- producer.
local function full_of(ctx, queue, task, of_tier, of_queue, rules)
  if task.key ~= Tasks.SYSTEM and (rules.bounded or of_tier ~= "" and not rules.source) then
    local waiting, known = waiting_of_tenant(ctx, task.key)
    local most = tonumber(of_tier)
    if rules.bounded then
      local tier = task.tier == "" and known or task.tier
      local row = Config.entitlement(ctx, task.tenant, tier, rules).row
      most = row and row.max_waiting
    end
    if most and waiting >= most then return {task.key, most, waiting} end
  end
  local most = tonumber(of_queue)
  if not most then return nil end
  local waiting = tonumber(redis.call("HGET", ctx.prefix .. Keys.WAITING, queue) or 0)
  return waiting >= most and {"queue:" .. queue, most, waiting} or nil
end

local function put(keys, args)
  local ctx = {prefix = keys[1], memo = {}, result = {}}
  local queue, message, frozen_ms, bindings, plain, entry = args[1], args[3], args[4], args[5], args[6], args[7]
  local tag, tenant, service, tier, rank, cost, eta_ms, expires_ms, id, name, limits, default_tier, of_tier,
    of_queue, is_new, unique = string.match(args[2], WORDS)
  eta_ms, expires_ms = tonumber(eta_ms), tonumber(expires_ms)
  -- Redis undoes no write if the function fails later. A record that no function can read would stop its queue.
  if not (tonumber(cost) and eta_ms and expires_ms) then
    return redis.error_reply("put: expected words without a space and numbers, got: " .. args[2])
  end

  -- Other producers and consumers write kombu's table. It must have exactly the bindings that the caller holds.
  if bindings ~= "" then
    if redis.call("SCARD", bindings) ~= #args - 7 then return 3 end
    for index = 8, #args do
      if redis.call("SISMEMBER", bindings, args[index]) == 0 then return 3 end
    end
  end
  local task = {
    tag = tag, attempt = 0, deaths = 0, cost = cost, rank = rank, tenant = tenant, service = service,
    tier = tier, id = id, name = name, limits = limits, key = Tasks.key_of(tenant, service),
  }
  local now = Clock.server_now(frozen_ms)
  local flags = redis.call("HMGET", ctx.prefix .. Keys.CLOCK, "traced", "limited", "ranked", "schema",
    "tiers_source", "bounded", "several", "slots", "bursts", "looks_again")
  Clock.check_schema(flags[4])
  local traced, limited = flags[1], flags[2]
  ctx.ranked, ctx.several, ctx.slots, ctx.bursts, ctx.looks_again = flags[3], flags[7], flags[8], flags[9], flags[10]
  unique = Unique.read(unique)
  local held, since
  if unique and not Tasks.is_known(ctx, tag) then held, since = Unique.holder(ctx, unique.key) end
  local is_duplicate = held and is_new ~= "" and unique.action ~= "r"
  -- A message in a plain list has no producer that waits for an answer.
  if is_duplicate and unique.action == "e" and plain == "" then return {Events.id_of(held)} end
  local replaces = held and is_new ~= "" and not is_duplicate
  if replaces and unique.latest_ms > 0 and Unique.waits(ctx, held) then
    eta_ms = math.min(eta_ms, since + unique.latest_ms)
  end
  local is_later = eta_ms > now
  if default_tier ~= "" and plain == "" and not is_later and not is_duplicate then
    local rules = {source = flags[5], bounded = flags[6], default_tier = default_tier, default_numbers = "", now = now}
    local full = full_of(ctx, queue, task, of_tier, of_queue, rules)
    if full and not Tasks.is_known(ctx, tag) then return full end
  end
  if plain ~= "" then
    if redis.call("HEXISTS", ctx.prefix .. Keys.QUEUE_LIMITS, "moved " .. queue) == 1 then return 5 end
    if redis.call("LREM", plain, -1, entry) == 0 then return 4 end
  end
  -- Two messages of one task have one result, which the task that exists will write.
  local is_same = held and Unique.is_same(held, task)
  if is_duplicate and is_same then return 6 end
  if not Tasks.add_message(ctx, task, message) then return 0 end
  task.queue = queue
  if is_duplicate then
    Unique.drop(ctx, task, held)
    return 6
  end
  if replaces and not Unique.replace(ctx, held, task) then since = now end
  if unique and (replaces or is_same or not held) then Unique.take(ctx, unique.key, tag, since or now) end
  if limits ~= "" then Wake.declare(ctx, limits, is_new ~= "", now) end
  if limited then task.limits = Config.in_partition(ctx, queue, limits, "") end
  if task.limits ~= "" and not limited then redis.call("HSET", ctx.prefix .. Keys.CLOCK, "limited", 1) end
  if tenant == "_invalid" then
    redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "invalid", 1)
    Clock.note_invalid(ctx, now)
  end
  task.seq = Tasks.next_seq(ctx)
  Tasks.add_id(ctx, task)
  if traced and tonumber(traced) > now then
    Events.emit_put(ctx, task, math.max(now, eta_ms))
  end
  if expires_ms > 0 then
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "expiring", 1)
    redis.call("ZADD", ctx.prefix .. Keys.EXPIRES .. queue, expires_ms, tag)
  end
  if is_later then
    -- If the task expires before its time, it is looked at when it expires.
    Schedule.wait_until(ctx, queue, task, expires_ms > 0 and math.min(eta_ms, expires_ms) or eta_ms)
    return Rings.with_bell(ctx, 2)
  end
  Lanes.enqueue(ctx, queue, task, true, now)
  return Rings.with_bell(ctx, 1)
end

register("put", {}, put)
-- A message leaves a plain list, which frees memory. So a full Redis accepts this call.
register("adopt", {"allow-oom"}, put)
