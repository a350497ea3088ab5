--[[
  Leases of claimed tasks.

  - `running` holds the owner and the state, by the tag of the task.
  - `ends` holds the logical time at which the lease ends.
  - `leases:KEY` counts the lease for the limit of its tenant.

  A lease is named `TAG.ATTEMPT.NONCE`, and the nonce is that of its owner. If Redis comes back with an older
  memory, it gives the same attempt to another worker. The nonce keeps the end and the renewals of the first
  worker away from that lease.
]]

-- Begins a renewal. `args` has lease_ms, the epoch that the caller holds or "", and frozen_ms. Returns three
-- values:
-- - the logical time at which renewed leases end
-- - whether memory was lost since that epoch
-- - the answer so far
function Leases.begin_renewal(ctx, args)
  local lease_ms, known_epoch, frozen_ms = tonumber(args[1]), args[2], args[3]
  local logical, now, epoch = Clock.tick(ctx, lease_ms, frozen_ms)
  epoch = Clock.meet_server(ctx, epoch, now)
  local lost = known_epoch ~= "" and tonumber(known_epoch) ~= epoch
  return string.format("%.0f", logical + lease_ms), lost, {string.format("%.0f", epoch)}
end

-- A lease of a key begins. The number of its leases may be kept in `rules.held` (held_of). If the lease stood
-- there already, it may have been counted or not. Then the number is dropped.
function Leases.begin_lease(ctx, key, lease, rules)
  local is_new = redis.call("ZADD", ctx.prefix .. "leases:" .. key, "+inf", lease) == 1
  local held = rules.held[key]
  rules.held[key] = held and is_new and held + 1 or nil
end

-- Removes the lease from every key that holds it. `tag` is that of its task.
function Leases.end_lease(ctx, lease, tag, keys, rules)
  redis.call("HDEL", ctx.prefix .. "running", tag)
  if rules.paced then Backoff.note_end(ctx, lease, keys, rules) end
  redis.call("ZREM", ctx.prefix .. "ends", lease)
  for key in string.gmatch(keys, "[^,]+") do
    redis.call("ZREM", ctx.prefix .. "leases:" .. key, lease)
  end
end

-- A lease of these keys has ended. The keys have commas between them, and the tenant's comes first. When a call
-- has received all ends, open_freed looks at what waits for the keys.
function Leases.freed(keys, rules)
  rules.freed = rules.freed or {}
  rules.freed[#rules.freed + 1] = keys
end

function Leases.open_freed(ctx, rules)
  local ended = rules.freed
  if not ended then return end
  rules.freed = nil
  if rules.limited then return Wake.free_all(ctx, ended, rules) end
  for index = 1, #ended do Tenants.reopen(ctx, string.match(ended[index], "^[^,]+"), rules) end
end

-- Ends an entry of `ends` that has no task and is over. An entry with one space before it is a key that waits
-- for a lease of the gate. An entry with two spaces is a key whose leases were entered again by their workers
-- (renew.lua).
function Leases.end_wait(ctx, rules, name)
  redis.call("ZREM", ctx.prefix .. "ends", name)
  local key = string.match(name, "^ (.*)$")
  if key and string.sub(key, 1, 1) == " " then
    redis.call("ZREMRANGEBYSCORE", ctx.prefix .. "leases:" .. string.sub(key, 2), "-inf", rules.logical)
  elseif key then
    Tenants.reopen(ctx, key, rules)
  end
end

-- Ends what is over, at most `most` per call. These are leases that nobody renewed, and entries of `ends`
-- without a task. Returns how many ended.
function Leases.expire(ctx, rules, most)
  local ended = redis.call(
    "ZRANGEBYSCORE", ctx.prefix .. "ends", "-inf", rules.logical, "LIMIT", 0, most)
  for index = 1, #ended do
    local lease = ended[index]
    local row, tag = Tasks.read_running(ctx, lease)
    if row then
      Settle.expire_one(ctx, rules, lease, row, tag)
    else
      Leases.end_wait(ctx, rules, lease)
    end
  end
  Leases.open_freed(ctx, rules)
  return #ended
end

--[[
  take_limits: a task starts, and its limits count its lease and its start.

  If somebody waits at a shared limit, the virtual time at which the tenant is due there next is noted too.
]]

-- One start clears away at most this many tags whose time is over.
local CLEAR_TAGS_AT_MOST = 4
-- A key keeps this many tags. If it has more, its virtual time goes on to the least one.
local TAGS_AT_MOST = 1000

-- A tenant started something under a key, whose virtual time is `virtual`. `tag` is when the tenant was due
-- there, if that is known. Returns when it is due there next.
function Leases.charge_shared(ctx, limit_key, key, virtual, amount, tag)
  local tags = ctx.prefix .. "tags:" .. limit_key
  local start = Blocked.shared_start(ctx, limit_key, key, virtual, tag)
  if start ~= tonumber(virtual) then
    redis.call("HSET", ctx.prefix .. "shared", limit_key, string.format("%.17g", start))
  end
  local is_new = redis.call("ZADD", tags, start + amount, key) == 1
  local passed = redis.call("ZRANGEBYSCORE", tags, "-inf", start, "LIMIT", 0, CLEAR_TAGS_AT_MOST)
  if #passed > 0 then
    redis.call("ZREM", tags, unpack(passed))
  elseif is_new and redis.call("ZCARD", tags) > TAGS_AT_MOST then
    redis.call("HSET", ctx.prefix .. "shared", limit_key, redis.call("ZPOPMIN", tags)[2])
  end
  return start + amount
end

-- A task starts. Its limits count it, and the times at which its tenant is due at them next are noted.
function Leases.take_limits(ctx, task, lease, rules, amount, found)
  local limits = Rates.of_one_key(Limits.limits_now(ctx, task.limits, rules))
  local keys, windows, counts = {}, {}, false
  for index = 1, #limits do
    local limit = limits[index]
    keys[index], windows[index] = limit.key, ctx.prefix .. "window:" .. limit.key
    counts = counts or limit.rates ~= "" or limit.throttle ~= ""
  end
  local virtual = redis.call("HMGET", ctx.prefix .. "shared", unpack(keys))
  counts = counts or redis.call("EXISTS", unpack(windows)) > 0
  task.due_at = {}
  for index = 1, #limits do
    local limit = limits[index]
    Leases.begin_lease(ctx, limit.key, lease, rules)
    if counts then Rates.count_start(ctx, limit, rules.logical) end
    Backoff.note_begin(ctx, limit, lease, rules)
    if virtual[index] and not limit.private then
      local tag = limit.key == found.limit_key and found.due
      task.due_at[limit.key] = Leases.charge_shared(ctx, limit.key, task.key, virtual[index], amount, tag)
    end
  end
end

--[[
  gate_slots: leases of a gate under one key.
]]

-- A set of leases that no call reads expires by itself, much later than any outage lasts.
Leases.KEEP_LEASES_MS = 86400000
-- One call clears away this many ended leases of one key.
Leases.CLEAR_AT_MOST = 64

function Leases.clear_ended(ctx, key, rules)
  local leases = ctx.prefix .. "leases:" .. key
  local ended = redis.call(
    "ZRANGEBYSCORE", leases, "-inf", rules.logical, "WITHSCORES", "LIMIT", 0, Leases.CLEAR_AT_MOST)
  for index = 1, #ended, 2 do
    redis.call("ZREM", leases, ended[index])
    -- The lease lived until this time, however late it is cleared away.
    local at = tonumber(ended[index + 1])
    if rules.paced then Backoff.note_end(ctx, ended[index], key, {logical = at}) end
    if rules.watched then Events.tell_gate_ended(ctx, ended[index], "expired", at) end
  end
  if #ended > 0 then Leases.note_freed(ctx.prefix .. "freed:" .. key) end
end

function Leases.take_slot(ctx, key, lease, ends)
  local leases = ctx.prefix .. "leases:" .. key
  redis.call("ZADD", leases, Rates.whole(ends), lease)
  redis.call("PEXPIRE", leases, Leases.KEEP_LEASES_MS)
  Rates.known_until(ctx, key, ends)
end

-- A task starts that has `limit`. Leases of tenants' keys are not noted. The caller that gives such a slot back
-- may not know that a limit counted it (release.lua).
function Leases.begin_slot(ctx, limit, lease, rules)
  if string.sub(limit.key, 1, 7) == "tenant:" or not Backoff.note_begin(ctx, limit, lease, rules) then return end
  redis.call("PEXPIRE", ctx.prefix .. "began:" .. limit.key, Leases.KEEP_LEASES_MS)
  -- A key without windows keeps the number by which its last lease was judged only here. It is for people who
  -- look.
  if limit.rates ~= "" or limit.throttle ~= "" then return end
  local pace = ctx.prefix .. "pace:" .. limit.key
  redis.call("HSET", pace, "asked", limit.concurrency)
  redis.call("PEXPIRE", pace, Leases.KEEP_LEASES_MS)
end

-- Returns how long it takes until the first lease of a key ends by itself. If the first lease is that of a
-- claim, or if there is none, the result is -1.
function Leases.first_end_ms(ctx, key, logical)
  local first = redis.call("ZRANGEBYSCORE", ctx.prefix .. "leases:" .. key, "(" .. Rates.whole(logical), "+inf",
    "WITHSCORES", "LIMIT", 0, 1)
  local ends = tonumber(first[2])
  return (not ends or ends == math.huge) and -1 or ends - logical
end

--[[
  freed: since when a tenant has a free slot while a task of it waits for its snooze.

  freed_key  string  "" since the tier last rejected a task, because no slot was free then; otherwise the
                     server's time (ms) at which a slot was given back last

  If a tier has not rejected a task of a tenant for long, the tenant has no such key. Then one EXISTS is the whole
  cost of a slot that is given back.
]]

-- Returns the key beside the leases of a tenant's tier.
function Leases.freed_of(leases)
  return (string.gsub(leases, "leases:", "freed:", 1))
end

-- A rejected task comes back within keep_ms.
function Leases.note_rejected(freed_key, keep_ms)
  redis.call("SET", freed_key, "", "PX", keep_ms)
end

function Leases.note_freed(freed_key)
  if redis.call("EXISTS", freed_key) == 0 then return end
  local time = redis.call("TIME")
  local now = string.format("%.0f", time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call("SET", freed_key, now, "KEEPTTL")
end
