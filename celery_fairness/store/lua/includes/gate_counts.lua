--[[
  gate_counts: what gates count of the tasks that ask, beside what limits count.

  counts_key    hash  counters, among them refused:{tier}
  exceeded_key  hash  how often each key has refused
  minute        str   the name of every minute, before its number
  job           str   id, name and queue of the task as JSON; "" where the asker has none
]]
--- @include "exceeded"
--- @include "minute"

-- The tier refuses a task, or would; `at` is what refuses (told.lua).
local function count_refused(counts_key, exceeded_key, tier, at)
  redis.call("HINCRBY", counts_key, "refused:" .. tier, 1)
  count_exceeded(exceeded_key, at.strategy, at.key)
end

-- "started": since when a task waits is not in its message.
local function count_at_gate(minute, now, what, tier, job)
  if job == "" then return end
  local field, other = minute_field(what, tier, cjson.decode(job)[3])
  count_in_minute(minute .. minute_of(now), field, other, 1)
end
