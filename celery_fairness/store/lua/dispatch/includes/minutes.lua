--[[
  minutes: what the claims and gates of one minute started and found at its tier's limit, by tier and queue.

  `minute:MINUTE` has counts by "WHAT TIER QUEUE". WHAT is "refused", or of a start how long the task
  had waited: "quiet:BITS" of a task behind none of its tenant's, "noisy:BITS" of another, which is
  less than two to the power of BITS ms; "started" where it has started before, or nobody knows.

  A gate counts "refused" and "started" (gate_counts.lua).

  A claim counts for itself and writes at its end, what is known in the minute with as many commands
  however much that is, and nothing where it met nothing.
]]
--- @include "minute"

local function note_minute(rules, what, tier, queue)
  local met = rules.met or {order = {}, count = {}, others = {}}
  local field, other = minute_field(what, tier, queue)
  if not met.count[field] then
    met.order[#met.order + 1] = field
    met.others[field] = other
  end
  met.count[field] = (met.count[field] or 0) + 1
  rules.met = met
end

local function note_start(rules, task, tier, queue)
  local put, noisy = string.match(task.put, "^@(%d+)(%+?)$")
  local what = "started"
  if put and task.attempt == 1 then
    local _, bits = math.frexp(math.max(0, rules.now - tonumber(put)))
    what = (noisy == "" and "quiet:" or "noisy:") .. bits
  end
  note_minute(rules, what, tier, queue)
end

local function write_minute(prefix, rules)
  local met = rules.met
  if not met then return end
  local minute = prefix .. "minute:" .. minute_of(rules.now)
  local known, sums = redis.call("HMGET", minute, unpack(met.order)), {}
  for index = 1, #met.order do
    local field = met.order[index]
    local count = met.count[field]
    if known[index] then
      sums[#sums + 1] = field
      sums[#sums + 1] = known[index] + count
    else
      count_in_minute(minute, field, met.others[field], count)
    end
  end
  if next(sums) then redis.call("HSET", minute, unpack(sums)) end
end
