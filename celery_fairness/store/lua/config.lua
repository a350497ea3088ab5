-- Decoding costs as much as two commands, so the texts of the last tiers are kept. Callers only read a row.
local TIERS_KEPT = 64
local tier_rows, tiers_kept = {}, 0

function Config.read_tier(text)
  if not tier_rows[text] then
    if tiers_kept == TIERS_KEPT then tier_rows, tiers_kept = {}, 0 end
    tier_rows[text], tiers_kept = cjson.decode(text), tiers_kept + 1
  end
  return tier_rows[text]
end

--[[
  entitlement: the tier and the concurrency of a tenant now.

  News in Redis replaces what the calling process holds:
  - The tenant's record replaces its tier.
  - The tier table replaces the numbers of the tier.
  - The default tier replaces an unknown tier.

  tiers_key      str   the name of `tiers`
  tenant_key     str   the name of the tenant's record, or false if no tenant has one
  tier           str   as the caller holds it
  concurrency    str   of that tier, as the caller holds it: an integer, "unlimited", or "" if the
                       caller does not have that tier
  default_tier   str   for a tier that is not in the table
  default_limit  str   of the default tier, as the caller holds it
  read           table by tier, what this call has read of the table
  now            int   server time in ms

  From the end of the tenant's record on, the tenant has the default tier.

  Returns tier, concurrency (-1 is unlimited), weight, the tier's row of the table, and the end of the record (server
  time in ms, or nil). If the table has neither the tier nor the default tier, the weight is 1 and there is no row.
]]
function Config.entitlement(tiers_key, tenant_key, tier, concurrency, default_tier, default_limit, read, now)
  local record = tenant_key and redis.call("HMGET", tenant_key, "tier", "concurrency", "ends_ms") or {}
  local known, ends_ms = tier, tonumber(record[3])
  if ends_ms and ends_ms <= now then record = {default_tier} end
  if record[1] and record[1] ~= "" then tier = record[1] end
  local rows = read[tier]
  if not rows then
    rows = redis.call("HMGET", tiers_key, tier, default_tier)
    rows.row = (rows[1] or rows[2]) and Config.read_tier(rows[1] or rows[2])
    read[tier] = rows
  end
  local limit
  local row = rows.row
  if rows[1] then
    limit = row["concurrency"]
  elseif rows[2] then
    tier, limit = default_tier, row["concurrency"]
  elseif tier == known and concurrency ~= "" then
    limit = concurrency
  else
    tier, limit = default_tier, default_limit
  end
  if record[2] and record[2] ~= "" then limit = record[2] end
  if limit == "unlimited" or limit == cjson.null then limit = -1 end
  return tier, tonumber(limit), row and tonumber(row["weight"]) or 1, row, ends_ms
end

-- As entitlement, with all tiers of the caller's settings. `tiers` holds the concurrency (text) and the weight by tier.
-- They count until tiers are published.
function Config.entitlement_by(ctx, tenant_key, tier, default_tier, tiers, read, now)
  local tier_now, limit, weight = Config.entitlement(ctx.prefix .. Keys.TIERS, ctx.prefix .. tenant_key, tier,
    tiers[tier] and tiers[tier][1] or "", default_tier, tiers[default_tier][1], read, now)
  -- No tier has a number as its name.
  if read[1] == nil then read[1] = redis.call("EXISTS", ctx.prefix .. Keys.TIERS) == 1 end
  if not read[1] then weight = tiers[tier_now] and tiers[tier_now][2] or 1 end
  return tier_now, limit, weight
end

--[[
  queues: the limits of queues. A limit counts a queue as a whole, or each partition of it.

  `queue_limits` holds `KEY SHAPE VERSION DECLARED SET` by `queue QUEUE`. SHAPE is whole or parts. DECLARED and SET are ""
  or `CONCURRENCY|RATES|THROTTLE|ACTION|LOCAL`. If people have set numbers, SET replaces DECLARED. The version
  grows whenever the numbers of any queue change.

  It also holds the queue by `key KEY`. KEY is `queue:QUEUE`, and `queue:QUEUE:PARTITION` for a partition.
  QUEUE has no colon in these keys.
]]

function Config.read_queue(text)
  local key, shape, version, declared, set = string.match(text, "^(%S+) (%a+) (%d+) (%S*) (%S*)$")
  local row = {key = key, parts = shape == "parts", version = tonumber(version), rates = "",
    declared = declared, set = set, throttle = "", on_limit = "w", spec = key .. "||||wg"}
  local numbers = set ~= "" and set or declared
  if numbers == "" then return row end
  local concurrency, rates, throttle, action, of_process = string.match(
    numbers, "^(%d*)|([^|]*)|([^|]*)|(%a)|(%d*)$")
  row.concurrency, row.rates, row.throttle = tonumber(concurrency), rates, throttle
  row.on_limit, row.of_process = action, tonumber(of_process)
  -- A task has this limit of the queue as a whole while it runs.
  if not row.parts then
    row.spec = table.concat({key, concurrency, rates, throttle, action .. "g"}, "|")
  end
  return row
end

-- Returns the limit of a queue, or false if the queue has none.
function Config.queue_row(ctx, queue, rules)
  rules.rows = rules.rows or {}
  if rules.rows[queue] == nil then
    local text = redis.call("HGET", ctx.prefix .. Keys.QUEUE_LIMITS, "queue " .. queue)
    rules.rows[queue] = text and Config.read_queue(text)
  end
  return rules.rows[queue]
end

-- Returns the version of the numbers of all queues.
function Config.queues_version(ctx)
  return tonumber(redis.call("HGET", ctx.prefix .. Keys.CLOCK, "queues_version") or 0)
end

-- Returns the queue whose limit has a key, or false.
function Config.queue_of_key(ctx, key)
  return redis.call("HGET", ctx.prefix .. Keys.QUEUE_LIMITS, "key " .. key)
end

-- Returns the limit of the queue to which a key belongs, as a whole or for a partition, or nil if it is no such key.
function Config.row_of_key(ctx, key, rules)
  local whole = string.match(key, "^queue:[^:]+")
  local queue = whole and Config.queue_of_key(ctx, whole)
  return queue and Config.queue_row(ctx, queue, rules) or nil
end

-- If the numbers of a limit are those of its queue, it gets them here.
function Config.use_queue_numbers(ctx, limit, rules)
  local row = Config.row_of_key(ctx, limit.key, rules)
  if not row then
    limit.on_limit = "w"
    return
  end
  limit.concurrency, limit.rates, limit.throttle = row.concurrency, row.rates, row.throttle
  limit.on_limit, limit.version = row.on_limit, row.version
  limit.of_process, limit.of_parts = row.of_process, row.parts
end

--[[
  stops: keys under which nothing starts for now, and numbers that people set for a key.

  A stop depends neither on the limits of the key nor on the enforcement. The ends of overrides and of pauses are
  server times, and the end of a cool-down is a logical time.

  `changes` holds them by `pause KEY` and `override KEY`, each as `ENDS_MS TEXT`. If ENDS_MS is "", the change lasts
  until a person ends it. `changes_end` orders the changes that have an end.

  - The text of a pause is `SINCE_MS BY`.
  - The text of an override is `CONCURRENCY|RATES|THROTTLE DETAILS`. No function reads the details. The number "-" is
    not set, and the number "" is unlimited.
]]

-- Returns when a person's change of a key ends (math.huge if only a person ends it), and its text. It returns nil if
-- there is none now.
function Config.change_of(ctx, what, key, rules)
  local row = redis.call("HGET", ctx.prefix .. Keys.CHANGES, what .. " " .. key)
  if not row then return nil end
  local ends, text = string.match(row, "^(%d*) (.*)$")
  ends = tonumber(ends) or math.huge
  if ends > rules.now then return ends, text end
end

-- `ends_ms` and `text` are as `changes` holds them.
function Config.set_change(ctx, what, key, ends_ms, text)
  local change, by_end = what .. " " .. key, ctx.prefix .. Keys.CHANGES_END
  redis.call("HSET", ctx.prefix .. Keys.CHANGES, change, ends_ms .. " " .. text)
  redis.call("ZREM", by_end, change)
  if ends_ms ~= "" then redis.call("ZADD", by_end, ends_ms, change) end
end

-- Returns whether there was such a change.
function Config.end_change(ctx, what, key)
  redis.call("ZREM", ctx.prefix .. Keys.CHANGES_END, what .. " " .. key)
  return redis.call("HDEL", ctx.prefix .. Keys.CHANGES, what .. " " .. key) == 1
end

-- Returns how long a person's pause of a key still lasts, and its text. It returns 0 if there is none.
function Config.paused_ms(ctx, key, rules)
  local ends, text = Config.change_of(ctx, "pause", key, rules)
  return ends and ends - rules.now or 0, text
end

-- Returns the numbers that people set for a key, as texts, and their end and details. It returns nil if nobody changed
-- them.
function Config.override_of(ctx, key, rules)
  local ends, text = Config.change_of(ctx, "override", key, rules)
  if not ends then return nil end
  local concurrency, rates, throttle, details = string.match(text, "^([^|]*)|([^|]*)|(%S*) (.*)$")
  return {concurrency = concurrency, rates = rates, throttle = throttle, ends_ms = ends < math.huge and ends or nil,
    notes = details}
end

-- Puts the numbers that people set in the place of a limit's own. `other` is as override_of returns it.
function Config.replace(limit, other)
  if not other then return end
  if other.concurrency ~= "-" then limit.concurrency = tonumber(other.concurrency) end
  if other.rates ~= "-" then limit.rates = other.rates end
  if other.throttle ~= "-" then limit.throttle = other.throttle end
end

-- Returns whether the key of a tenant can pause all its services. With a second colon it is that of one service of
-- another tenant.
function Config.is_of_all(tenant_key)
  return not string.find(tenant_key, ":.*:")
end

-- Returns the limit of a tenant, after a pause or an override by a person.
function Config.tenant_limit(ctx, key, tenant, own, rules)
  if Config.paused_ms(ctx, key, rules) > 0 then return 0 end
  local of_all = "tenant:" .. tenant
  if key ~= of_all and Config.is_of_all(of_all) and Config.paused_ms(ctx, of_all, rules) > 0 then return 0 end
  local other = Config.override_of(ctx, key, rules)
  if not other or other.concurrency == "-" then return own end
  return tonumber(other.concurrency) or -1
end

-- Notes in the clock whether claims must read pauses and overrides of tenants.
function Config.note_overrides(ctx)
  if redis.call("EXISTS", ctx.prefix .. Keys.CHANGES) == 1 then
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "has_overrides", 1)
  else
    redis.call("HDEL", ctx.prefix .. Keys.CLOCK, "has_overrides")
  end
end

--[[
  stopped: how long a limit is stopped. Neither its counts nor the enforcement matter here.
]]

-- Returns whether any key is stopped or has other numbers than its own.
function Config.has_overrides(ctx, rules)
  if rules.holds == nil then
    rules.holds = redis.call("EXISTS", ctx.prefix .. Keys.CHANGES, ctx.prefix .. Keys.COOL_DOWNS) > 0
  end
  return rules.holds
end

-- Returns how long a pause or a cool-down stops a limit. If the limit is not stopped, the result is 0. If only
-- a person can end the stop, the result is math.huge.
function Config.stopped_ms(ctx, limit, rules)
  if limit.concurrency == 0 then return math.huge end
  if not Config.has_overrides(ctx, rules) then return 0 end
  local cooled = redis.call("ZSCORE", ctx.prefix .. Keys.COOL_DOWNS, limit.key)
  return math.max(Config.paused_ms(ctx, limit.key, rules),
    cooled and tonumber(cooled) - rules.logical or 0)
end

-- Returns whether a person paused a stopped limit. Otherwise the limit only cools down.
function Config.is_paused(ctx, limit, rules)
  return limit.concurrency == 0 or Config.paused_ms(ctx, limit.key, rules) > 0
end

-- Deletes cool-downs that are over, at most `most` per call.
function Config.forget_cooled(ctx, logical, most)
  local over = redis.call("ZRANGEBYSCORE", ctx.prefix .. Keys.COOL_DOWNS, "-inf", logical, "LIMIT", 0, most)
  for index = 1, #over do redis.call("ZREM", ctx.prefix .. Keys.COOL_DOWNS, over[index]) end
end

--[[
  partition: the limit of a task that waits in a partitioned queue.

  Each task that waits in such a queue has exactly one such limit, which is that of its partition.
]]

-- This pattern matches the limit of a partition, which has the numbers of its queue.
local OF_QUEUE = "^[^|]*|q|"

-- Returns the limits of a task that begins to wait in a queue. If the queue is partitioned and no limit names a
-- partition of it, `part` is added. If `part` is of another queue, the partition for tasks without one is
-- added.
function Config.in_partition(ctx, queue, specs, part)
  local row = Config.queue_row(ctx, queue, {})
  if not (row and row.parts) then return specs end
  local whole = row.key .. ":"
  for spec in string.gmatch(specs, "[^,]+") do
    if string.sub(spec, 1, #whole) == whole and string.match(spec, OF_QUEUE) then return specs end
  end
  local key = string.sub(part, 1, #whole) == whole and part or whole
  return (specs == "" and "" or specs .. ",") .. key .. "|q|||w"
end

-- Returns the limits of a task that leaves its queue. The task loses its partition there.
function Config.without_partition(specs)
  local left = {}
  for spec in string.gmatch(specs, "[^,]+") do
    if not string.match(spec, OF_QUEUE) then left[#left + 1] = spec end
  end
  return table.concat(left, ",")
end

--[[
  declared: the newest numbers of each key, by which all tasks of the key are checked.

  `declared:KEY` is `CONCURRENCY|RATES|THROTTLE`. Each number is that of the last new task that gave one, or "" if
  none did. If a task has no rate, no rate of another task applies to it. A concurrency of 0 applies only to its
  own task, because one call would otherwise stop all others.

  A task that was accepted before (a retry, or a copy that a gate sent back) carries older numbers. It declares
  them only if the key has none.
]]

-- The numbers of a key are kept this long after its last new task.
local DECLARED_MS = 3600000

function Config.read_declared(text)
  return string.match(text or "||", "^(%d*)|([^|]*)|([^|]*)$")
end

function Config.newer(own, known, is_new)
  return own ~= "" and (is_new or known == "") and own or known
end

-- Notes the limits of a task that comes, at most one per key. Returns the keys whose numbers changed or were not known.
function Config.declare(ctx, specs, is_new)
  local changed = {}
  for spec in string.gmatch(specs, "[^,]+") do
    local key, own, own_rates, own_throttle = string.match(spec, "^([^|]*)|(%d*)|([^|]*)|([^|]*)|%a[^g]?$")
    if own == "0" then own = "" end
    if key and own .. own_rates .. own_throttle ~= "" then
      local name = ctx.prefix .. Keys.DECLARED .. key
      local known = redis.call("GETEX", name, "PX", DECLARED_MS)
      local concurrency, rates, throttle = Config.read_declared(known)
      local text = Config.newer(own, concurrency, is_new) .. "|" .. Config.newer(own_rates, rates, is_new)
        .. "|" .. Config.newer(own_throttle, throttle, is_new)
      if text ~= known then
        redis.call("SET", name, text, "PX", DECLARED_MS)
        changed[#changed + 1] = key
      end
    end
  end
  return changed
end

-- The tasks that wait at these keys may be free to start. So the next claim and the next promotion look at
-- them. Returns the keys at which tasks wait.
function Config.check_again(ctx, keys)
  local waiting = {}
  for index = 1, #keys do
    local key = keys[index]
    if redis.call("EXISTS", ctx.prefix .. Keys.WAITERS .. key) == 1 then
      redis.call("ZADD", ctx.prefix .. Keys.TIMERS, 0, key)
      waiting[#waiting + 1] = key
    end
  end
  return waiting
end
