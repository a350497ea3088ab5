--[[
  config: what people set, as calls read it: tiers, tenants, limits of queues, pauses, overrides, newest numbers.
]]

-- Decoding costs as much as two commands, so the numbers of the last tiers are kept. Callers only read them.
local TIERS_KEPT = 64
local tier_rows, tiers_kept = {}, 0

-- Returns the numbers of a row of the tier table, as Numbers.read does.
function Config.read_tier(text)
  if not tier_rows[text] then
    if tiers_kept == TIERS_KEPT then tier_rows, tiers_kept = {}, 0 end
    tier_rows[text], tiers_kept = Numbers.read(cjson.decode(text).numbers), tiers_kept + 1
  end
  return tier_rows[text]
end

--[[
  entitlement: the tier and the numbers of a tenant by its record and the tiers.

  News in Redis replaces what the calling process holds:
  - The tenant's record replaces its tier. From the end of the record on, the tenant has the default tier.
  - The tier table replaces the numbers of the tier.
  - The default tier replaces an unknown tier.

  tenant  str    the name of the tenant's record
  tier    str    as the caller holds it
  rules   table  as for Tenants.state

  Returns a record with these fields:
  - tenant, tier, weight
  - limit           its concurrency, -1 is unlimited
  - burst           its concurrency for a claim that finds nothing else, or nil
  - rate, throttle  as a limit has them, "" is unlimited
  - row             the numbers of the tier in the table, or nil if it has neither the tier nor the default tier
  - ends_ms         the end of the tenant's record (server time), or nil
  - is_published    whether the tenant has a record
  - has_own         whether the concurrency is the tenant's own
]]
local NOTHING = {}

-- Returns a number of a tenant: its own one, or that of its tier. Without a limit the result is false or nil.
local function number_of(name, own, of_tier)
  if own[name] ~= nil then return own[name] end
  return of_tier[name]
end

function Config.entitlement(ctx, tenant, tier, rules)
  local record = rules.no_tenant_published and NOTHING
    or redis.call("HMGET", ctx.prefix .. Keys.TENANT .. tenant, "tier", "numbers", "ends_ms")
  local known, ends_ms, is_published = tier, tonumber(record[3]), record[1] and true or false
  if ends_ms and ends_ms <= rules.now then record = {rules.default_tier} end
  if record[1] and record[1] ~= "" then tier = record[1] end
  local memo, held = ctx.memo, rules.held_tiers
  local tiers = memo.tiers
  if not tiers then
    tiers = {}
    memo.tiers = tiers
  end
  local rows = tiers[tier]
  if not rows then
    rows = redis.call("HMGET", ctx.prefix .. Keys.TIERS, tier, rules.default_tier)
    rows.row = (rows[1] or rows[2]) and Config.read_tier(rows[1] or rows[2])
    tiers[tier] = rows
  end
  local row, numbers = rows.row, nil
  if rows[1] then
    numbers = row
  elseif rows[2] then
    tier, numbers = rules.default_tier, row
  elseif tier == known and held and held[tier] then
    numbers = Numbers.read(held[tier])
  else
    tier, numbers = rules.default_tier, Numbers.read(rules.default_numbers)
  end
  local weight = row and row.weight or 1
  local of_caller = held and not row and held[tier] and Numbers.read(held[tier]).weight
  if of_caller then
    if memo.has_tiers == nil then memo.has_tiers = redis.call("EXISTS", ctx.prefix .. Keys.TIERS) == 1 end
    if not memo.has_tiers then weight = of_caller end
  end
  local own = record[2] and Numbers.read(record[2]) or NOTHING
  return {tenant = tenant, tier = tier, weight = weight, row = row, ends_ms = ends_ms, is_published = is_published,
    has_own = own.concurrency ~= nil, limit = number_of("concurrency", own, numbers) or -1,
    burst = number_of("burst", own, numbers) or nil,
    rate = number_of("rate", own, numbers) or "", throttle = number_of("throttle", own, numbers) or ""}
end

--[[
  queues: the limits of queues. A queue has a limit as a whole, and may have one of each partition.

  `queue_limits` holds `KEY VERSION WHOLE PART SET SET_PART` by `queue QUEUE`. The last four are "" or `NUMBERS|ACTION`
  (numbers.lua). WHOLE and PART are declared. If people have set numbers, SET replaces WHOLE, and SET_PART replaces PART.
  The tasks of a queue have partitions if PART is not "", also if it has no numbers. The version grows whenever the numbers
  of any queue change.

  It also holds the queue by `key KEY`. KEY is `queue:QUEUE`, and `queue:QUEUE:PARTITION` for a partition.
  QUEUE has no colon in these keys.
]]

-- A claim checks this number by what its worker sends, and not as a limit of the task.
local CHECKED_BY_WORKER = {local_limit = true}

-- Returns the limit of two texts, of which the one that people have set counts. `kind` is the reason for it.
local function read_limit(declared, set)
  local is_set = set ~= ""
  local numbers, action = string.match(is_set and set or declared, "^([^|]*)|(%a)$")
  local kind = is_set and "queue" or declared ~= "" and "settings" or nil
  return Numbers.set({on_limit = action or "w", kind = kind}, numbers or "")
end

-- Returns a row with these fields:
-- - text, key, version
-- - texts  the last four words of the row
-- - whole  the limit of the queue as a whole
-- - part   the limit of each partition, or nil if the tasks of the queue have no partition
-- - spec   the limit of the queue as a whole, which a task has while it runs
function Config.read_queue(text)
  local key, version, whole, part, set, set_part = string.match(text, "^(%S+) (%d+) (%S*) (%S*) (%S*) (%S*)$")
  local row = {text = text, key = key, version = tonumber(version), texts = {whole, part, set, set_part},
    whole = read_limit(whole, set), part = part ~= "" and read_limit(part, set_part) or nil}
  row.spec = key .. "|" .. Numbers.write(row.whole, CHECKED_BY_WORKER) .. "|" .. row.whole.on_limit .. "g"
  return row
end

-- Returns the limit of a row that has a key: the key of the queue as a whole, or of a partition. It returns nil if the
-- tasks of the queue have no partition.
function Config.limit_of_row(row, key)
  if key == row.key then return row.whole end
  return row.part
end

-- Returns the limit of a queue, or false if the queue has none.
function Config.queue_row(ctx, queue)
  local rows = ctx.memo.rows or {}
  ctx.memo.rows = rows
  if rows[queue] == nil then
    local text = redis.call("HGET", ctx.prefix .. Keys.QUEUE_LIMITS, "queue " .. queue)
    rows[queue] = text and Config.read_queue(text)
  end
  return rows[queue]
end

-- Returns the version of the numbers of all queues.
function Config.queues_version(ctx)
  return tonumber(redis.call("HGET", ctx.prefix .. Keys.CLOCK, "queues_version") or 0)
end

-- Returns the queue whose limit has a key, or false.
function Config.queue_of_key(ctx, key)
  return redis.call("HGET", ctx.prefix .. Keys.QUEUE_LIMITS, "key " .. key)
end

-- Returns the queue whose limit as a whole has a key. The result is false or nil if there is none.
function Config.queue_of_whole(ctx, key)
  return string.match(key, "^queue:[^:]+$") and Config.queue_of_key(ctx, key)
end

-- Returns whether a key is that of a queue as a whole, or of a partition.
function Config.is_of_queue(key)
  return string.find(key, "^queue:") ~= nil
end

-- Returns the limit of the queue to which a key belongs, as a whole or for a partition, or nil if it is no such key.
function Config.row_of_key(ctx, key)
  local whole = string.match(key, "^queue:[^:]+")
  local queue = whole and Config.queue_of_key(ctx, whole)
  return queue and Config.queue_row(ctx, queue) or nil
end

-- If the numbers of a limit are those of its queue, it gets them here.
function Config.use_queue_numbers(ctx, limit)
  local row = Config.row_of_key(ctx, limit.key)
  local own = row and Config.limit_of_row(row, limit.key)
  limit.version, limit.on_limit = row and row.version, own and own.on_limit or "w"
  if own then Numbers.copy(limit, own) end
end

--[[
  stops: keys under which nothing starts for now, and numbers that people set for a key.

  A stop depends neither on the limits of the key nor on the enforcement. The ends of overrides and of pauses are
  server times, and the end of a cool-down is a logical time.

  `changes` holds them by `pause KEY` and `override KEY`, each as `ENDS_MS TEXT`. If ENDS_MS is "", the change lasts
  until a person ends it. `changes_end` orders the changes that have an end.

  - The text of a pause is `SINCE_MS BY`.
  - The text of an override is `NUMBERS DETAILS` (numbers.lua). No function reads the details.
]]

-- Returns when the change of a row ends (math.huge if only a person ends it), and its text. It returns nil if there is
-- none now.
local function read_change(row, rules)
  if not row then return nil end
  local ends, text = string.match(row, "^(%d*) (.*)$")
  ends = tonumber(ends) or math.huge
  if ends > rules.now then return ends, text end
end

-- Returns a person's change of a key as read_change does.
function Config.change_of(ctx, what, key, rules)
  return read_change(redis.call("HGET", ctx.prefix .. Keys.CHANGES, what .. " " .. key), rules)
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

-- Returns the numbers of a row as a text, and their end and details. It returns nil if there are none now.
local function read_override(row, rules)
  local ends, text = read_change(row, rules)
  if not ends then return nil end
  local numbers, details = string.match(text, "^(%S*) (.*)$")
  return {numbers = numbers, ends_ms = ends < math.huge and ends or nil, notes = details}
end

-- Returns the numbers that people set for a key itself, as read_override does.
function Config.override_of(ctx, key, rules)
  return read_override(redis.call("HGET", ctx.prefix .. Keys.CHANGES, "override " .. key), rules)
end

--[[
  patterns: the key of an override may end in `*`. Each key that the pattern matches then has the numbers for itself.

  A pattern ends behind one of the separators, or it is `*` alone. The override of a key itself goes before those of its
  patterns, and a longer pattern before a shorter one. The pattern `*` holds for limits without numbers of their own, and
  for no key of a queue or a tenant.

  If any override has a pattern, `has_patterns` is in the clock. No table lists the keys of a pattern. So when a pattern
  changes, `queue_limits` gets the present version of the numbers of queues by `look QUEUE`, for each queue with a closed
  limit. Claims look again at the limits of such a queue that were closed by an older version (Pick.check_again). While any
  such note is there, `looks_again` is in the clock, and each limit that closes stores the version. The last closed limit of
  a queue takes the note along, because no claim of the queue may come any more.
]]
local SEPARATOR = "[.:-]()"
-- A key has at most this many patterns beside `*`. A longer pattern is rejected where people set it.
local PATTERNS_AT_MOST = 7
local ANY = "*"

function Config.is_pattern(key)
  return string.sub(key, -1) == "*"
end

-- Returns the patterns of a key, the longest first. `is_bare` is true if `*` may be one of them.
function Config.patterns_of(key, is_bare)
  local found = {is_bare and not Config.is_of_queue(key) and not string.find(key, "^tenant:") and ANY or nil}
  local count = 0
  for behind in string.gmatch(key, SEPARATOR) do
    count = count + 1
    if count > PATTERNS_AT_MOST then break end
    table.insert(found, 1, string.sub(key, 1, behind - 1) .. ANY)
  end
  return found
end

-- Returns the numbers that people set for a limit, as read_override does. If they have a pattern, `pattern` has it.
function Config.override_of_limit(ctx, limit, rules)
  if not ctx.has_patterns then return Config.override_of(ctx, limit.key, rules) end
  local patterns = Config.patterns_of(limit.key, limit.is_bare)
  local fields = {"override " .. limit.key}
  for index = 1, #patterns do fields[index + 1] = "override " .. patterns[index] end
  local rows = redis.call("HMGET", ctx.prefix .. Keys.CHANGES, unpack(fields))
  for index = 1, #rows do
    local other = read_override(rows[index], rules)
    if other then
      other.pattern = patterns[index - 1]
      return other
    end
  end
end

-- Puts the numbers that people set in the place of a limit's own. `other` is as override_of_limit returns it.
function Config.replace(limit, other)
  if other then Numbers.replace(limit, other.numbers) end
end

-- Returns whether the key of a tenant can pause all its services. With a second colon it is that of one service of
-- another tenant.
function Config.is_of_all(tenant_key)
  return not string.find(tenant_key, ":.*:")
end

-- Gives the record of a tenant its numbers after a pause or an override by a person.
function Config.override_tenant(ctx, key, state, rules)
  local of_all = "tenant:" .. state.tenant
  if Config.paused_ms(ctx, key, rules) > 0
    or key ~= of_all and Config.is_of_all(of_all) and Config.paused_ms(ctx, of_all, rules) > 0 then
    state.limit = 0
    return
  end
  local other = Config.override_of(ctx, key, rules)
  local set = other and Numbers.read(other.numbers) or NOTHING
  if set.concurrency ~= nil then state.limit = set.concurrency or -1 end
  if set.rate ~= nil then state.rate = set.rate or "" end
  if set.throttle ~= nil then state.throttle = set.throttle or "" end
end

-- Notes in the clock whether claims must read pauses and overrides of tenants.
function Config.note_overrides(ctx)
  if redis.call("EXISTS", ctx.prefix .. Keys.CHANGES) == 1 then
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "has_overrides", 1)
  else
    redis.call("HDEL", ctx.prefix .. Keys.CLOCK, "has_overrides", "has_patterns")
  end
end

--[[
  stopped: how long a limit is stopped. Neither its counts nor the enforcement matter here.
]]

-- Returns whether any key is stopped or has other numbers than its own.
function Config.has_overrides(ctx)
  if ctx.memo.holds == nil then
    ctx.memo.holds = redis.call("EXISTS", ctx.prefix .. Keys.CHANGES, ctx.prefix .. Keys.COOL_DOWNS) > 0
  end
  return ctx.memo.holds
end

-- Returns how long a pause or a cool-down stops a limit. If the limit is not stopped, the result is 0. If only
-- a person can end the stop, the result is math.huge.
function Config.stopped_ms(ctx, limit, rules)
  if limit.concurrency == 0 then return math.huge end
  if not Config.has_overrides(ctx) then return 0 end
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
  local row = Config.queue_row(ctx, queue)
  if not (row and row.part) then return specs end
  local whole = row.key .. ":"
  for spec in string.gmatch(specs, "[^,]+") do
    if string.sub(spec, 1, #whole) == whole and string.match(spec, OF_QUEUE) then return specs end
  end
  local key = string.sub(part, 1, #whole) == whole and part or whole
  return (specs == "" and "" or specs .. ",") .. key .. "|q|w"
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

  `declared:KEY` is a text of numbers (numbers.lua). Each number is that of the last new task that gave one. If a task has no rate, no rate of another task applies to it. A concurrency of 0 applies only to its
  own task, because one call would otherwise stop all others.

  A task that was accepted before (a retry, or a copy that a gate sent back) carries older numbers. It declares
  them only if the key has none.
]]

-- The numbers of a key are kept this long after its last new task.
local DECLARED_MS = 3600000
-- In a partition the text ends with the time of the new task that gave them, and with 0 if it was no new one. The home of a
-- key has the newest concurrency of all partitions (grants.lua).
local SINCE = ";@(%d+)$"

-- Returns the newest numbers of a key as a text, "" if none are known, and since when it has them.
function Config.declared_of(ctx, key)
  local text = redis.call("GET", ctx.prefix .. Keys.DECLARED .. key) or ""
  return (string.gsub(text, SINCE, "")), tonumber(string.match(text, SINCE) or 0)
end

-- Notes the limits of a task that comes, at most one per key. Returns the keys whose numbers changed or were not known.
-- `now` is the server's time.
function Config.declare(ctx, specs, is_new, now)
  local changed = {}
  for spec in string.gmatch(specs, "[^,]+") do
    local key, own = string.match(spec, "^([^|]*)|([^|q]*)|%a[^g]?$")
    own = key and Numbers.shared(own)
    if own and own ~= "" then
      local name = ctx.prefix .. Keys.DECLARED .. key
      local known = string.gsub(redis.call("GETEX", name, "PX", DECLARED_MS) or "", SINCE, "")
      local text = Numbers.newest(own, known, is_new)
      if text ~= known then
        local since = Rings.is_partition(ctx) and ";@" .. Rates.int_text(is_new and now or 0) or ""
        redis.call("SET", name, text .. since, "PX", DECLARED_MS)
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
