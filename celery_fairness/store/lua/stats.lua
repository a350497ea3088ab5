--[[
  stats: the counters of rejections, lost entries, starts and ends by minute, and starts above a limit by hour.

  rejections: how often each key has rejected a task, by its strategy, in the fields `rejections STRATEGY KEY` of
  `counters`.
]]

-- If `counters` has too many fields, a new key counts as the key `_other` of its strategy. A tenant's key may be new
-- up to 1,000 fields, another key up to 2,000. So tenants leave room for the other keys.
local EXCEEDED_AT_MOST, OTHER_KEYS = 1000, "_other"

function Stats.count_rejection(ctx, strategy, key)
  local counts, of_strategy = ctx.prefix .. Keys.COUNTERS, "rejections " .. strategy .. " "
  if redis.call("HINCRBY", counts, of_strategy .. key, 1) > 1 then return end
  local most = string.sub(key, 1, 7) == "tenant:" and EXCEEDED_AT_MOST or 2 * EXCEEDED_AT_MOST
  if redis.call("HLEN", counts) > most then
    redis.call("HDEL", counts, of_strategy .. key)
    redis.call("HINCRBY", counts, of_strategy .. OTHER_KEYS, 1)
  end
end

--[[
  lost: entries whose record, lane or place is gone, because somebody has deleted keys or the server has evicted them.

  No call stops at such an entry, because one lost key would stop other tenants and queues. The call takes the entry
  away or passes it by, counts it, and goes on. Only `check --repair` compares all tables, and repairs what the entry
  has left behind (docs/adr/0022-lost-entries.md).
]]

function Stats.count_lost(ctx)
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "lost_entries", 1)
end

--[[
  minute: how often something happened in one minute of the server's time, by type (WHAT), tier and queue.
]]

-- A minute in ms of the server's time, and how long its numbers are kept.
local MINUTE_MS, KEPT_MS = 60000, 21660000
-- The first minute of an hour also has what workers observed in the hour (observed). It is kept for one hour more than
-- the day that people look at.
local MINUTES_OF_HOUR, FIRST_KEPT_MS = 60, 90000000
-- If a minute has more fields than this, the others count as those of one queue.
local MINUTE_FIELDS_AT_MOST, OTHER_QUEUES = 1000, "_other"
-- Keys of limits may be many, so they leave room for the queues.
local KEY_FIELDS_AT_MOST = 500

function Stats.minute_of(now)
  return string.format("%.0f", math.floor(now / MINUTE_MS))
end

function Stats.minute_field(what, tier, queue)
  local first = what .. " " .. (tier or "") .. " "
  return first .. queue, first .. OTHER_QUEUES
end

-- Adds to a field of a hash. If the field is new and the hash has more than `most` fields with it, `other` counts. A field
-- that is there already costs one command. Returns whether it was new.
local function count_in(name, field, other, count, most)
  if redis.call("HINCRBY", name, field, count) > count then return false end
  if redis.call("HLEN", name) > most then
    redis.call("HDEL", name, field)
    redis.call("HINCRBY", name, other, count)
  end
  return true
end

-- Returns at how many fields a hash takes no new field like this one.
local function most_of(field, of_queues, of_keys)
  return string.sub(field, 1, 8) == "limited:" and of_keys or of_queues
end

local function keep_minute(minute_key)
  local is_first = tonumber(string.match(minute_key, "%d+$")) % MINUTES_OF_HOUR == 0
  redis.call("PEXPIRE", minute_key, is_first and FIRST_KEPT_MS or KEPT_MS)
end

function Stats.count_in_minute(minute_key, field, other, count)
  local most = most_of(field, MINUTE_FIELDS_AT_MOST, KEY_FIELDS_AT_MOST)
  if count_in(minute_key, field, other, count, most) then keep_minute(minute_key) end
end

-- Counts a task that a gate starts or rejects. `job` is nil if the caller has no task.
function Stats.count_at_gate(ctx, rules, what, tier, job)
  if not job then return end
  local field, other = Stats.minute_field(what, tier, job.queue)
  Stats.count_in_minute(ctx.prefix .. Keys.STATS .. Stats.minute_of(rules.now), field, other, 1)
end

-- Returns the least power of two that is more than the wait of a task in ms.
local function bits_since(put, now)
  local _, bits = math.frexp(math.max(0, now - tonumber(put)))
  return bits
end

-- Returns what a minute counts of a wait, and the name of the limit's key there. Returns nil if no limit has rejected
-- the task.
local function limited_of(reported, bits)
  local key = string.match(reported, "|(.*)$")
  if not key then return nil end
  return "limited:" .. bits, string.sub(key, 1, 7) == "tenant:" and OTHER_KEYS or key
end

-- How a body ends that ran to its end, as its worker reports it.
Stats.RAN = {done = true, failed = true, retried = true}

-- Counts the end of an attempt: done, failed or retried. Its process or its lease may have ended too, which is failed.
-- Most ends are done, and their calls do not read the queue, so these count for the installation.
function Stats.note_end(ctx, outcome, queue)
  Stats.note_minute(ctx, outcome, "", outcome == "done" and "" or queue)
end

-- A gate starts a task that it had parked. `memory` is what copies.lua has stored for its message.
function Stats.count_parked(ctx, rules, memory)
  local what, key = limited_of(memory.reported, bits_since(memory.since, rules.now))
  if what then Stats.count_at_gate(ctx, rules, what, "", {queue = key}) end
end

--[[
  minutes: what claims and gates of one minute started or found at its tier's limit, by tier and queue. Also how many
  attempts ended: `done` of the installation, and `failed` and `retried` by queue.

  A gate counts "rejected" and "started", and "limited" of a task that it had parked. It does not know how long the
  message of another task waited at its broker.

  A call counts in its own memory and writes the counts at its end. It adds one thing with
  one command. It adds several things to the fields that the minute has already with two commands in total. If it met
  nothing, it writes nothing.
]]

function Stats.note_minute(ctx, what, tier, queue)
  local met = ctx.result.met or {order = {}, count = {}, others = {}}
  local field, other = Stats.minute_field(what, tier, queue)
  if not met.count[field] then
    met.order[#met.order + 1] = field
    met.others[field] = other
  end
  met.count[field] = (met.count[field] or 0) + 1
  ctx.result.met = met
end

-- If a limit has rejected the task before, its wait counts for the key of that limit too, as `limited:BITS`.
function Stats.note_start(ctx, rules, task, tier, queue)
  local put, behind = string.match(task.put, "^(%d+)(%+?)$")
  if not put or task.attempt > 1 then
    Stats.note_minute(ctx, "started", tier, queue)
    return
  end
  local bits = bits_since(put, rules.now)
  Stats.note_minute(ctx, (behind == "" and "alone:" or "behind_own:") .. bits, tier, queue)
  local what, key = limited_of(task.blocked, bits)
  if what then Stats.note_minute(ctx, what, "", key) end
end

function Stats.write_minute(ctx, rules)
  local met = ctx.result.met
  if not met then return end
  ctx.result.met = nil
  local minute = ctx.prefix .. Keys.STATS .. Stats.minute_of(rules.now)
  local only = met.order[1]
  if met.count[only] == 1 and not met.order[2] then
    Stats.count_in_minute(minute, only, met.others[only], 1)
    return
  end
  local known, sums = redis.call("HMGET", minute, unpack(met.order)), {}
  for index = 1, #met.order do
    local field = met.order[index]
    local count = met.count[field]
    if known[index] then
      sums[#sums + 1] = field
      sums[#sums + 1] = known[index] + count
    else
      Stats.count_in_minute(minute, field, met.others[field], count)
    end
  end
  if next(sums) then redis.call("HSET", minute, unpack(sums)) end
end

--[[
  totals: the sums of all minutes.

  `announce` adds each minute that is over to `totals`, once. A reader adds the minutes after that, the oldest first.
  `last_total` in the clock is the last minute that was added. If it is more than an hour ahead, an announcement came
  while the server's clock ran ahead. Then the minute before the present one replaces it. A minute before the oldest one
  that may still be stored is lost.

  `totals` has the fields of a minute, with one change. Waits have no queue, and each also counts as
  `started TIER QUEUE`. So the waits need few fields.

  Weakness: if the server's clock goes back, calls count in minutes that were added before. These counts are missing.
  If nobody has announced for hours in which tasks started, a reader leaves out the last of these minutes.
]]

-- If `totals` has more fields than this, the others count as those of one queue or key. Here too keys leave room for
-- the queues.
local TOTAL_FIELDS_AT_MOST, TOTAL_KEY_FIELDS_AT_MOST = 2000, 1000
-- One call looks at most at this many minutes. It adds no minute after one with which it has added this many fields.
local MINUTES_AT_MOST, ADDED_AT_MOST = 60, 500
-- A reader adds no minute after one with which it has read this many fields. One field takes about a microsecond and a
-- half.
local READ_AT_MOST = 1000

-- Returns the first minute that is not in `totals`, the present one, and whether `last_total` is too far ahead.
local function minutes_left(ctx, now)
  local last_total, began = unpack(redis.call("HMGET", ctx.prefix .. Keys.CLOCK, "last_total", "began"))
  local current = math.floor(now / MINUTE_MS)
  local oldest = current - math.ceil(KEPT_MS / MINUTE_MS)
  local first = last_total and last_total + 1 or math.floor((tonumber(began) or 0) / MINUTE_MS)
  if first > current + MINUTES_OF_HOUR then return current, current, true end
  return math.max(oldest, first), current
end

-- Adds the counts of a minute to `sums`. `others` gets the field that counts if there are too many.
local function add_minute(flat, sums, others)
  local function add(what, tier, queue, count)
    local field, other = Stats.minute_field(what, tier, queue)
    sums[field], others[field] = (sums[field] or 0) + count, other
  end
  for index = 1, #flat, 2 do
    local what, tier, queue = string.match(flat[index], "^(%S+) (%S*) (.*)$")
    local count = tonumber(flat[index + 1])
    if string.find(what, "^[%l_]+:") and not string.find(what, "^limited") then
      add(what, tier, "", count)
      others[what .. " " .. tier .. " "] = what .. " " .. tier .. " "
      add("started", tier, queue, count)
    elseif what ~= "observed" then
      add(what, tier, queue, count)
    end
  end
end

function Stats.fold_minutes(ctx, now)
  local first, current, is_ahead = minutes_left(ctx, now)
  local minute, last, added = first, math.min(current, first + MINUTES_AT_MOST) - 1, 0
  if last < first and not is_ahead then return end
  while minute <= last do
    local flat = redis.call("HGETALL", ctx.prefix .. Keys.STATS .. string.format("%.0f", minute))
    local sums, others = {}, {}
    add_minute(flat, sums, others)
    for field, count in pairs(sums) do
      local most = most_of(field, TOTAL_FIELDS_AT_MOST, TOTAL_KEY_FIELDS_AT_MOST)
      count_in(ctx.prefix .. Keys.TOTALS, field, others[field], count, most)
    end
    added = added + #flat / 2
    if added >= ADDED_AT_MOST then last = minute end
    minute = minute + 1
  end
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "last_total", string.format("%.0f", last))
end

-- Returns the sums by field. Writes nothing.
function Stats.totals_of(ctx, now)
  local sums, flat = {}, redis.call("HGETALL", ctx.prefix .. Keys.TOTALS)
  for index = 1, #flat, 2 do sums[flat[index]] = tonumber(flat[index + 1]) end
  local first, current = minutes_left(ctx, now)
  local read = 0
  for minute = first, current do
    local counts = redis.call("HGETALL", ctx.prefix .. Keys.STATS .. string.format("%.0f", minute))
    add_minute(counts, sums, {})
    read = read + #counts / 2
    if read >= READ_AT_MOST then break end
  end
  return sums
end

--[[
  observed: the tasks that workers started above their tier's limit in one hour of the server's time, because these
  workers only observe.

  The first minute of the hour has a field `observed TIER KEY` for each tenant. Its value is "COUNT MOST": how many such
  tasks started, and how many tasks the tenant ran at once at most. `totals` leaves these fields out. A call that does
  not observe runs no command for this.

  Weakness: an hour has the tenants that came first, which may not be those with the most tasks.
]]

-- Counts a task that starts above its tier's limit. `held` is how many tasks its tenant then runs. If there are too many
-- fields, a new tenant counts as the key `_other` of its tier.
function Stats.count_observed(ctx, rules, tier, key, held)
  local minute = math.floor(rules.now / MINUTE_MS)
  local first = minute - minute % MINUTES_OF_HOUR
  local first_minute = ctx.prefix .. Keys.STATS .. string.format("%.0f", first)
  local field, other = Stats.minute_field("observed", tier, key)
  local known = redis.call("HGET", first_minute, field)
  if not known and redis.call("HLEN", first_minute) >= KEY_FIELDS_AT_MOST then
    field = other
    known = redis.call("HGET", first_minute, field)
  end
  local count, most = string.match(known or "0 0", "^(%d+) (%d+)$")
  redis.call("HSET", first_minute, field, string.format("%.0f %.0f", count + 1, math.max(most, held)))
  if not known then keep_minute(first_minute) end
end
