--[[
  exceeded: how often each key has refused, by its strategy.

  exceeded_key  hash  "STRATEGY KEY" -> how often
]]

-- Of more keys and strategies the others are counted as those of one key; tenants leave room for others.
local EXCEEDED_AT_MOST, OTHER_KEYS = 1000, "_other"

function Stats.count_exceeded(exceeded_key, strategy, key)
  local field = strategy .. " " .. key
  if redis.call("HINCRBY", exceeded_key, field, 1) > 1 then return end
  local most = string.sub(key, 1, 7) == "tenant:" and EXCEEDED_AT_MOST or 2 * EXCEEDED_AT_MOST
  if redis.call("HLEN", exceeded_key) > most then
    redis.call("HDEL", exceeded_key, field)
    redis.call("HINCRBY", exceeded_key, strategy .. " " .. OTHER_KEYS, 1)
  end
end

--[[
  minute: how often something happened in one minute of the server's time, by what, tier and queue.

  minute_key    hash  "WHAT TIER QUEUE" -> how often

  What the WHATs are is told by stats.lua.
]]

-- So long the numbers of a minute are kept, by the server's time.
local MINUTE_MS, KEPT_MS = 60000, 21660000
-- Of more fields of a minute the others are counted as those of one queue.
local MINUTE_FIELDS_AT_MOST, OTHER_QUEUES = 1000, "_other"

function Stats.minute_of(now)
  return string.format("%.0f", math.floor(now / MINUTE_MS))
end

function Stats.minute_field(what, tier, queue)
  local first = what .. " " .. (tier or "") .. " "
  return first .. queue, first .. OTHER_QUEUES
end

-- `other` is the field where there are too many; one command where the field is known.
function Stats.count_in_minute(minute_key, field, other, count)
  if redis.call("HINCRBY", minute_key, field, count) > count then return end
  if redis.call("HLEN", minute_key) > MINUTE_FIELDS_AT_MOST then
    redis.call("HDEL", minute_key, field)
    redis.call("HINCRBY", minute_key, other, count)
  end
  redis.call("PEXPIRE", minute_key, KEPT_MS)
end

--[[
  gate_counts: what gates count of the tasks that ask, beside what limits count.

  counts_key    hash  counters, among them refused:{tier}
  exceeded_key  hash  how often each key has refused
  minute        str   the name of every minute, before its number
  job           str   id, name and queue of the task as JSON; "" where the asker has none
]]

-- The tier refuses a task, or would; `at` is what refuses (events.lua).
function Stats.count_refused(counts_key, exceeded_key, tier, at)
  redis.call("HINCRBY", counts_key, "refused:" .. tier, 1)
  Stats.count_exceeded(exceeded_key, at.strategy, at.key)
end

-- "started": since when a task waits is not in its message.
function Stats.count_at_gate(minute, now, what, tier, job)
  if job == "" then return end
  local field, other = Stats.minute_field(what, tier, cjson.decode(job)[3])
  Stats.count_in_minute(minute .. Stats.minute_of(now), field, other, 1)
end

--[[
  minutes: what the claims and gates of one minute started and found at its tier's limit, by tier and queue.

  `minute:MINUTE` has counts by "WHAT TIER QUEUE". WHAT is "refused", or of a start how long the task
  had waited: "quiet:BITS" of a task behind none of its tenant's, "noisy:BITS" of another, which is
  less than two to the power of BITS ms; "started" where it has started before, or nobody knows.

  A gate counts "refused" and "started" (stats.lua).

  A claim counts for itself and writes at its end, what is known in the minute with as many commands
  however much that is, and nothing where it met nothing.
]]

function Stats.note_minute(rules, what, tier, queue)
  local met = rules.met or {order = {}, count = {}, others = {}}
  local field, other = Stats.minute_field(what, tier, queue)
  if not met.count[field] then
    met.order[#met.order + 1] = field
    met.others[field] = other
  end
  met.count[field] = (met.count[field] or 0) + 1
  rules.met = met
end

function Stats.note_start(rules, task, tier, queue)
  local put, noisy = string.match(task.put, "^(%d+)(%+?)$")
  local what = "started"
  if put and task.attempt == 1 then
    local _, bits = math.frexp(math.max(0, rules.now - tonumber(put)))
    what = (noisy == "" and "quiet:" or "noisy:") .. bits
  end
  Stats.note_minute(rules, what, tier, queue)
end

function Stats.write_minute(ctx, rules)
  local met = rules.met
  if not met then return end
  local minute = ctx.prefix .. "minute:" .. Stats.minute_of(rules.now)
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
