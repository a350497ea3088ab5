--[[
  watched: what becomes of each task, told in the stream `task_events` while somebody watches (watch.lua).
]]
--- @include "events"

-- So many are kept, and the rest of a block of the stream.
local WATCHED_KEPT = 100000

local function append_watched(prefix, what, ...)
  redis.call("XADD", prefix .. "task_events", "MAXLEN", "~", WATCHED_KEPT, "*", "type", what, ...)
end

-- `job` is the id, the name and the queue of a task.
local function append_watched_of(prefix, what, job, key, ...)
  append_watched(prefix, what, "job_id", job[1], "job_type", job[2], "queue", job[3], "key", key, ...)
end

local function tell_watched(prefix, what, queue, task, message, ...)
  append_watched_of(prefix, what, job_of(queue, task, message), task.key, ...)
end

-- `eta_ms`: server time from which it may start.
local function tell_put(prefix, queue, task, message, eta_ms)
  tell_watched(prefix, "task.put", queue, task, message, "tier", task.tier,
    "cost", string.format("%.17g", task.cost), "rank", task.rank, "eta", string.format("%.0f", eta_ms))
end

local function seconds_since(ms, now)
  return ms and string.format("%.3f", math.max(0, now - tonumber(ms)) / 1000) or ""
end

local function tell_started(prefix, queue, task, message, rules)
  tell_watched(prefix, "task.started", queue, task, message, "attempt", task.attempt, "owner", rules.owner,
    "waited_seconds", seconds_since(string.match(task.put, "%d+"), rules.now))
end

-- `row` is that of `running` whose lease ends.
local function tell_ended(prefix, row, outcome, rules)
  local owner, _, queue, record, since = read_running(row)
  local task, message = read_record(record)
  tell_watched(prefix, "task.ended", queue, task, message, "attempt", task.attempt, "owner", owner,
    "outcome", outcome, "ran_seconds", seconds_since(string.match(since, "^@(%d+)"), rules.logical))
end
