--[[
  Leases of claimed tasks: `running` holds the task, `ends` the logical time at which the lease ends,
  `leases:KEY` counts it for its tenant's limit.

  A lease is named TAG.ATTEMPT.NONCE. The nonce is its owner's: where Redis comes back with an older
  memory it gives the same attempt to another, and the first one's end and renewals are not of that.
]]

-- Begins a renewal: `args` has lease_ms, the epoch that the caller knows or "", and frozen_ms. Returns the
-- logical time at which renewed leases end, whether memory was lost since that epoch, and the answer so far.
function Leases.begin_renewal(ctx, args)
  local lease_ms, known_epoch, frozen_ms = tonumber(args[1]), args[2], args[3]
  local logical, now, epoch = Clock.tick(ctx, lease_ms, frozen_ms)
  epoch = Clock.meet_server(ctx, epoch, now)
  local lost = known_epoch ~= "" and tonumber(known_epoch) ~= epoch
  return string.format("%.0f", logical + lease_ms), lost, {string.format("%.0f", epoch)}
end

-- A lease of a key begins. How many it has may be kept (held_of); whether one that stood there already
-- counted is not known.
function Leases.begin_lease(ctx, key, lease, rules)
  local is_new = redis.call("ZADD", ctx.prefix .. "leases:" .. key, "+inf", lease) == 1
  local held = rules.held[key]
  rules.held[key] = held and is_new and held + 1 or nil
end

-- Takes the lease out of everything that knows it; the task stays known unless it is done.
function Leases.end_lease(ctx, lease, keys, rules)
  redis.call("HDEL", ctx.prefix .. "running", lease)
  if rules.timed then Start.correct(ctx, lease, string.match(keys, "^[^,]+"), keys, rules) end
  if rules.paced then Backoff.note_end(ctx, lease, keys, rules) end
  redis.call("ZREM", ctx.prefix .. "ends", lease)
  for key in string.gmatch(keys, "[^,]+") do
    redis.call("ZREM", ctx.prefix .. "leases:" .. key, lease)
  end
end

-- A lease has ended of these keys, told with commas, the tenant's first. Once a call has heard of all that
-- ended it looks at what waits for them (open_freed).
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

-- What is in `ends` without a task, and is over: with a space before it a key that waits for a lease of the
-- gate, with two a key of which leases were entered again by whoever held them (renew.lua).
function Leases.end_wait(ctx, rules, name)
  redis.call("ZREM", ctx.prefix .. "ends", name)
  local key = string.match(name, "^ (.*)$")
  if key and string.sub(key, 1, 1) == " " then
    redis.call("ZREMRANGEBYSCORE", ctx.prefix .. "leases:" .. string.sub(key, 2), "-inf", rules.logical)
  elseif key then
    Tenants.reopen(ctx, key, rules)
  end
end

-- What ends now, at most `most`: leases that nobody renewed, and what waits in `ends` without a task.
-- Returns how many did.
function Leases.expire(ctx, rules, most)
  local ended = redis.call(
    "ZRANGEBYSCORE", ctx.prefix .. "ends", "-inf", rules.logical, "LIMIT", 0, most)
  for index = 1, #ended do
    local lease = ended[index]
    local row = redis.call("HGET", ctx.prefix .. "running", lease)
    if row then
      Settle.expire_one(ctx, rules, lease, row)
    else
      Leases.end_wait(ctx, rules, lease)
    end
  end
  Leases.open_freed(ctx, rules)
  return #ended
end

--[[
  take_limits: a task starts, and its limits count it: its lease, its start, and at shared limits at
  which somebody waits the virtual time at which its tenant is due there next.
]]

-- Tags that a start clears away whose time is over.
local CLEAR_TAGS_AT_MOST = 4
-- Tags of one key: it goes on to the least one where there are more.
local TAGS_AT_MOST = 1000

-- A tenant started something under a key, whose time is `virtual`, where it was due at `tag`, if that is known.
-- Returns when it is due there next. `rules.passed` says by key of which time a claim knows that no tag is over.
function Leases.charge_shared(ctx, limit_key, key, virtual, amount, tag, rules)
  local tags = ctx.prefix .. "tags:" .. limit_key
  local start = Blocked.shared_start(ctx, limit_key, key, virtual, tag)
  if start ~= tonumber(virtual) then
    redis.call("HSET", ctx.prefix .. "shared", limit_key, string.format("%.17g", start))
  end
  local is_new = redis.call("ZADD", tags, start + amount, key) == 1
  local passed = rules.passed[limit_key] == start and {}
    or redis.call("ZRANGEBYSCORE", tags, "-inf", start, "LIMIT", 0, CLEAR_TAGS_AT_MOST)
  -- The least charge is lost in a large sum.
  rules.passed[limit_key] = #passed == 0 and start + amount > start and start or nil
  if #passed > 0 then
    redis.call("ZREM", tags, unpack(passed))
  elseif is_new and redis.call("ZCARD", tags) > TAGS_AT_MOST then
    redis.call("HSET", ctx.prefix .. "shared", limit_key, redis.call("ZPOPMIN", tags)[2])
  end
  return start + amount
end

-- A task starts: its limits count it, and it is noted when its tenant is due at them next.
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
      task.due_at[limit.key] = Leases.charge_shared(ctx, limit.key, task.key, virtual[index], amount, tag, rules)
    end
  end
end

--[[
  gate_slots: leases of a gate under one key.
]]

-- A set of leases that nobody asks about goes by itself, much later than any outage.
Leases.KEEP_LEASES_MS = 86400000
-- Ended leases of one key that one call clears away.
Leases.CLEAR_AT_MOST = 64

function Leases.clear_ended(ctx, key, rules)
  local leases = ctx.prefix .. "leases:" .. key
  local ended = redis.call(
    "ZRANGEBYSCORE", leases, "-inf", rules.logical, "WITHSCORES", "LIMIT", 0, Leases.CLEAR_AT_MOST)
  for index = 1, #ended, 2 do
    redis.call("ZREM", leases, ended[index])
    -- It has lived until then, however late it is cleared away.
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
end

-- A task starts that has `limit`. Leases of tenants' keys are not noted: who gives such a slot back may
-- not know that a limit counted it (release.lua).
function Leases.begin_slot(ctx, limit, lease, rules)
  if string.sub(limit.key, 1, 7) == "tenant:" or not Backoff.note_begin(ctx, limit, lease, rules) then return end
  redis.call("PEXPIRE", ctx.prefix .. "began:" .. limit.key, Leases.KEEP_LEASES_MS)
  -- Of one without windows nothing else says by which number it was judged, for people who look.
  if limit.rates ~= "" or limit.throttle ~= "" then return end
  local pace = ctx.prefix .. "pace:" .. limit.key
  redis.call("HSET", pace, "asked", limit.concurrency)
  redis.call("PEXPIRE", pace, Leases.KEEP_LEASES_MS)
end

-- How long until the first lease of a key ends by itself, -1 where that of a claim is first.
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

  A tenant whose tier has not rejected a task for long has no such key: to give a slot back costs one EXISTS.
]]

-- The key that lies beside the leases of a tenant's tier.
function Leases.freed_of(leases)
  return (string.gsub(leases, "leases:", "freed:", 1))
end

-- What was rejected comes back within keep_ms.
function Leases.note_rejected(freed_key, keep_ms)
  redis.call("SET", freed_key, "", "PX", keep_ms)
end

function Leases.note_freed(freed_key)
  if redis.call("EXISTS", freed_key) == 0 then return end
  local time = redis.call("TIME")
  local now = string.format("%.0f", time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call("SET", freed_key, now, "KEEPTTL")
end
