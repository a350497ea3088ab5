--[[
  entitlement: the tier and the concurrency of a tenant now.

  News in Redis win over what the asking process knows: the tenant's record over its tier, the tier
  table over its numbers, the default tier over an unknown one.

  tiers_key      hash  tier -> {"concurrency": int or null, ...} as JSON
  tenant_key     hash  tier, concurrency ("" or absent: the tier's; "unlimited")
  tier           str   as the caller knows it
  concurrency    str   of that tier, as the caller knows it: an integer, "unlimited", or "" where
                       the caller does not know that tier
  default_tier   str   for a tier that the table does not know
  default_limit  str   of the default tier, as the caller knows it
  read           table by tier, what this call has read of the table

  Returns tier, concurrency (-1 is unlimited), weight (1 where the table does not know the tier).
]]
function Config.entitlement(tiers_key, tenant_key, tier, concurrency, default_tier, default_limit, read)
  local record = redis.call("HMGET", tenant_key, "tier", "concurrency")
  local known = tier
  if record[1] and record[1] ~= "" then tier = record[1] end
  local rows = read[tier]
  if not rows then
    rows = redis.call("HMGET", tiers_key, tier, default_tier)
    rows.row = (rows[1] or rows[2]) and cjson.decode(rows[1] or rows[2])
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
  return tier, tonumber(limit), row and tonumber(row["weight"]) or 1
end

--[[
  queues: the limits of queues, of each as a whole or of each partition of it.

  `queue_limits` says by queue KEY SHAPE VERSION DECLARED SET, where SHAPE is whole or parts, and the
  last two are "" or CONCURRENCY|RATES|THROTTLE|ACTION|LOCAL: what people set stands in the place of what
  is declared. The version grows with what is said of any queue. `queue_keys` says by KEY whose it is.
  KEY is queue:QUEUE, that of a partition queue:QUEUE:PARTITION, where QUEUE has no colon.
]]

function Config.read_queue(text)
  local key, shape, version, declared, set = string.match(text, "^(%S+) (%a+) (%d+) (%S*) (%S*)$")
  local row = {key = key, parts = shape == "parts", version = tonumber(version), rates = "",
    declared = declared, set = set, throttle = "", on_limit = "w", word = key .. "||||wg"}
  local numbers = set ~= "" and set or declared
  if numbers == "" then return row end
  local concurrency, rates, throttle, action, of_process = string.match(
    numbers, "^(%d*)|([^|]*)|([^|]*)|(%a)|(%d*)$")
  row.concurrency, row.rates, row.throttle = tonumber(concurrency), rates, throttle
  row.on_limit, row.of_process = action, tonumber(of_process)
  -- That of the queue as a whole, as its tasks have it while they run.
  if not row.parts then
    row.word = table.concat({key, concurrency, rates, throttle, action .. "g"}, "|")
  end
  return row
end

-- What is known of a queue; false where it has no limit.
function Config.queue_row(ctx, queue, rules)
  rules.rows = rules.rows or {}
  if rules.rows[queue] == nil then
    local text = redis.call("HGET", ctx.prefix .. "queue_limits", queue)
    rules.rows[queue] = text and Config.read_queue(text)
  end
  return rules.rows[queue]
end

-- A limit whose numbers are those of its queue gets them.
function Config.use_numbers(ctx, limit, rules)
  local whole = string.match(limit.key, "^queue:[^:]+")
  local queue = whole and redis.call("HGET", ctx.prefix .. "queue_keys", whole)
  local row = queue and Config.queue_row(ctx, queue, rules)
  if not row then
    limit.on_limit = "w"
    return
  end
  limit.concurrency, limit.rates, limit.throttle = row.concurrency, row.rates, row.throttle
  limit.on_limit, limit.version = row.on_limit, row.version
  limit.of_process, limit.of_parts = row.of_process, row.parts
end

--[[
  stops: keys under which nothing starts for now, whatever their limits say and whatever is enforced;
  and numbers that people put in the place of a key's own.

  `paused` holds keys that a person paused until somebody resumes them, `paused_until` those with a
  time, `cooled` those that cool down, with the logical time until which they do. `paused_by` holds for
  each that is paused SINCE_MS, the server's time, and after a space the person; functions do not read it.

  `overrides` says by key CONCURRENCY|RATES|THROTTLE|ENDS_MS and, after a space, what functions do not
  read: "-" is not said, "" is unlimited; an end of "" is when it is cleared. `overrides_end` orders
  those with an end. Ends of overrides and of pauses are times of the server.
]]

-- How long a person's pause of a key lasts; 0: there is none.
function Config.paused_ms(ctx, key, rules)
  if redis.call("SISMEMBER", ctx.prefix .. "paused", key) == 1 then return math.huge end
  local ends = redis.call("ZSCORE", ctx.prefix .. "paused_until", key)
  return ends and math.max(0, tonumber(ends) - rules.now) or 0
end

-- A key's numbers as texts; nil where nobody changed them.
function Config.override_of(ctx, key, rules)
  local row = redis.call("HGET", ctx.prefix .. "overrides", key)
  if not row then return nil end
  local concurrency, rates, throttle, ends = string.match(row, "^([^|]*)|([^|]*)|([^|]*)|(%d*)")
  if ends ~= "" and tonumber(ends) <= rules.now then return nil end
  return {concurrency = concurrency, rates = rates, throttle = throttle}
end

-- What a tenant may hold where a person paused it or changed that.
function Config.tenant_limit(ctx, key, tenant, own, rules)
  if Config.paused_ms(ctx, key, rules) > 0 then return 0 end
  local of_all = "tenant:" .. tenant
  if key ~= of_all and Config.paused_ms(ctx, of_all, rules) > 0 then return 0 end
  local other = Config.override_of(ctx, key, rules)
  if not other or other.concurrency == "-" then return own end
  return tonumber(other.concurrency) or -1
end

-- Whether a claim has to ask what people have said of a tenant.
function Config.note_steering(ctx)
  if redis.call("EXISTS", ctx.prefix .. "paused", ctx.prefix .. "paused_until", ctx.prefix .. "overrides") > 0 then
    redis.call("HSET", ctx.prefix .. "clock", "steered", 1)
  else
    redis.call("HDEL", ctx.prefix .. "clock", "steered")
  end
end

--[[
  stopped: how long a limit is stopped, whatever it counts and whatever is enforced.
]]

-- Whether anything is stopped or has other numbers than its own.
function Config.is_steered(ctx, rules)
  if rules.stops == nil then
    rules.stops = redis.call("EXISTS", ctx.prefix .. "paused", ctx.prefix .. "paused_until",
      ctx.prefix .. "cooled", ctx.prefix .. "overrides") > 0
  end
  return rules.stops
end

-- How long a pause or a cool-down stops a limit: 0 is not, math.huge until a person says so.
function Config.stopped_ms(ctx, limit, rules)
  if limit.concurrency == 0 then return math.huge end
  if not Config.is_steered(ctx, rules) then return 0 end
  local cooled = redis.call("ZSCORE", ctx.prefix .. "cooled", limit.key)
  return math.max(Config.paused_ms(ctx, limit.key, rules),
    cooled and tonumber(cooled) - rules.logical or 0)
end

-- Whether a limit that is stopped is so because of a person, and does not cool down alone.
function Config.is_paused(ctx, limit, rules)
  return limit.concurrency == 0 or Config.paused_ms(ctx, limit.key, rules) > 0
end

-- Forgets cool-downs that are over, at most `most`.
function Config.forget_cooled(ctx, logical, most)
  local over = redis.call("ZRANGEBYSCORE", ctx.prefix .. "cooled", "-inf", logical, "LIMIT", 0, most)
  for index = 1, #over do redis.call("ZREM", ctx.prefix .. "cooled", over[index]) end
end

--[[
  partition: of a partitioned queue each task that waits there has one limit, that of its partition.
]]

-- A word of that limit: its numbers are those of the queue.
local OF_QUEUE = "^[^|]*|q|"

-- The limits of a task that begins to wait in a queue: where that is partitioned and they name no
-- partition of it, with `part`, or with that of tasks that say none.
function Config.in_partition(ctx, queue, words, part)
  local row = redis.call("HGET", ctx.prefix .. "queue_limits", queue)
  local whole = row and string.match(row, "^%S+ parts ") and string.match(row, "^%S+") .. ":"
  if not whole then return words end
  for word in string.gmatch(words, "[^,]+") do
    if string.sub(word, 1, #whole) == whole and string.match(word, OF_QUEUE) then return words end
  end
  local key = string.sub(part, 1, #whole) == whole and part or whole
  return (words == "" and "" or words .. ",") .. key .. "|q|||w"
end

-- The limits of a task that leaves its queue: its partition there is not its own any more.
function Config.without_partition(words)
  local left = {}
  for word in string.gmatch(words, "[^,]+") do
    if not string.match(word, OF_QUEUE) then left[#left + 1] = word end
  end
  return table.concat(left, ",")
end

--[[
  declared: the newest numbers of each key, by which all tasks of the key are judged.

  `declared:KEY` is CONCURRENCY|RATES|THROTTLE, each as the last new task said it that said one; "" where
  none did. A task that says no rate is judged by none, whatever others say. A concurrency of 0 is nobody's
  but its task's: one call would stop all others.

  What was accepted before (a retry, a copy that a gate has sent back) says older numbers, and declares
  them only where none are known.
]]

-- What a key declares is known so long after its last new task.
local DECLARED_MS = 3600000

function Config.read_declared(text)
  return string.match(text or "||", "^(%d*)|([^|]*)|([^|]*)$")
end

function Config.newer(own, known, is_new)
  return own ~= "" and (is_new or known == "") and own or known
end

-- A task comes with these limits, at most one of a key. Returns the keys that have other numbers than before.
function Config.declare(ctx, words, is_new)
  local changed = {}
  for word in string.gmatch(words, "[^,]+") do
    local key, own, own_rates, own_throttle = string.match(word, "^([^|]*)|(%d*)|([^|]*)|([^|]*)|%a[^g]?$")
    if own == "0" then own = "" end
    if key and own .. own_rates .. own_throttle ~= "" then
      local name = ctx.prefix .. "declared:" .. key
      local known = redis.call("GETEX", name, "PX", DECLARED_MS)
      local concurrency, rates, throttle = Config.read_declared(known)
      local text = Config.newer(own, concurrency, is_new) .. "|" .. Config.newer(own_rates, rates, is_new)
        .. "|" .. Config.newer(own_throttle, throttle, is_new)
      if text ~= known then redis.call("SET", name, text, "PX", DECLARED_MS) end
      if known and text ~= known then changed[#changed + 1] = key end
    end
  end
  return changed
end

-- What waits at these keys may be open: the next claim, and the next promotion, look at it.
function Config.look_again(ctx, keys)
  for index = 1, #keys do
    local key = keys[index]
    if redis.call("EXISTS", ctx.prefix .. "waited:" .. key) == 1 then redis.call("ZADD", ctx.prefix .. "opens", 0, key) end
    if redis.call("EXISTS", ctx.prefix .. "gate_places:" .. key) == 1 then
      redis.call("ZADD", ctx.prefix .. "gate_looks", 0, key)
      Parked.ring_gate(ctx)
    end
  end
end
