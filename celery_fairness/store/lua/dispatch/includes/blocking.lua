--[[
  blocking: a limit refuses the first task of a lane, and that starts later: each is told once of a
  task, in its record too.
]]
--- @include "events"
--- @include "exceeded"
--- @include "lanes"
--- @include "told"
--- @include "weight"

-- The first task of a part, its message, and its tag where it came back; nil where there is none.
local function first_of(prefix, queue, key, part)
  local lane, kind = read_part(part)
  local record, tag
  if kind then
    tag = redis.call("ZRANGE", prefix .. back_name(key, lane, kind, queue), 0, 0)[1]
    record = tag and redis.call("HGET", prefix .. "returned", tag)
  else
    record = redis.call("LINDEX", prefix .. list_name(key, lane, queue), 0)
  end
  if not record then return nil end
  local task, message = read_record(record)
  return task, message, tag
end

-- `closed` says strategy, key, limit and current.
local function tell_blocked(prefix, queue, task, message, closed)
  task.blocked = tell_exceeded(prefix .. "events", job_of(queue, task, message), closed)
end

local function mark_first(prefix, queue, key, part, task, message, tag)
  local record = write_record(task, message)
  if tag then
    redis.call("HSET", prefix .. "returned", tag, record)
  else
    redis.call("LSET", prefix .. list_name(key, part, queue), 0, record)
  end
end

-- A tenant is at its tier's limit: `part` is the first of its lanes.
local function block_by_tier(prefix, queue, key, part, verdict, rules, turns)
  count_exceeded(prefix .. "exceeded", verdict.paused and "paused" or "concurrency", key)
  local task, message, tag = first_of(prefix, queue, key, part)
  if not task then return end
  weigh(turns, units_of(message))
  if task.blocked ~= "" then return end
  local held = verdict.held or redis.call("ZCOUNT", prefix .. "leases:" .. key,
    string.format("(%.0f", rules.logical), "+inf")
  tell_blocked(prefix, queue, task, message, at_tier(key, verdict.limit, held))
  mark_first(prefix, queue, key, part, task, message, tag)
end

-- A task starts that was refused.
local function tell_unblocked(prefix, queue, task, message)
  tell_released(prefix .. "events", job_of(queue, task, message), task.blocked)
end
