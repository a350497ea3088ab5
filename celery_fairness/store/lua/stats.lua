--[[
  exceeded: how often each key has rejected a task, by its strategy, in the fields `exceeded STRATEGY KEY` of `counts`.
]]

-- If `counts` has too many fields, a new key counts as the key `_other` of its strategy. A tenant's key may be new
-- up to 1,000 fields, another key up to 2,000. So tenants leave room for the other keys.
local EXCEEDED_AT_MOST, OTHER_KEYS = 1000, "_other"

function Stats.count_exceeded(ctx, strategy, key)
  local counts, of_strategy = ctx.prefix .. "counts", "exceeded " .. strategy .. " "
  if redis.call("HINCRBY", counts, of_strategy .. key, 1) > 1 then return end
  local most = string.sub(key, 1, 7) == "tenant:" and EXCEEDED_AT_MOST or 2 * EXCEEDED_AT_MOST
  if redis.call("HLEN", counts) > most then
    redis.call("HDEL", counts, of_strategy .. key)
    redis.call("HINCRBY", counts, of_strategy .. OTHER_KEYS, 1)
  end
end

--[[
  minute: how often something happened in one minute of the server's time, by type (WHAT), tier and queue.
]]

-- A minute in ms of the server's time, and how long its numbers are kept.
local MINUTE_MS, KEPT_MS = 60000, 21660000
-- If a minute has more fields than this, the others count as those of one queue.
local MINUTE_FIELDS_AT_MOST, OTHER_QUEUES = 1000, "_other"

function Stats.minute_of(now)
  return string.format("%.0f", math.floor(now / MINUTE_MS))
end

function Stats.minute_field(what, tier, queue)
  local first = what .. " " .. (tier or "") .. " "
  return first .. queue, first .. OTHER_QUEUES
end

-- `other` is the field that counts if there are too many. A field that is there already costs one command.
function Stats.count_in_minute(minute_key, field, other, count)
  if redis.call("HINCRBY", minute_key, field, count) > count then return end
  if redis.call("HLEN", minute_key) > MINUTE_FIELDS_AT_MOST then
    redis.call("HDEL", minute_key, field)
    redis.call("HINCRBY", minute_key, other, count)
  end
  redis.call("PEXPIRE", minute_key, KEPT_MS)
end

-- Counts a task that a gate starts or rejects. `job` is nil if the caller has no task.
function Stats.count_at_gate(ctx, rules, what, tier, job)
  if not job then return end
  local field, other = Stats.minute_field(what, tier, job.queue)
  Stats.count_in_minute(ctx.prefix .. "minute:" .. Stats.minute_of(rules.now), field, other, 1)
end

--[[
  minutes: what claims and gates of one minute started or found at its tier's limit, by tier and queue.

  A gate counts only "refused" and "started", because the message does not hold since when the task waits.

  A call counts in its own memory and writes the counts at its end. It adds to the fields that the minute has
  already with two commands in total. If it met nothing, it writes nothing.
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
