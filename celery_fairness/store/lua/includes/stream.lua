--[[
  stream: what happened, told by the script that did it. Ids and times of events are the stream's.

  events_key  stream  the installation's
]]

-- So many are kept, and the rest of a block of the stream.
local EVENTS_KEPT = 10000

local function append_event(events_key, what, ...)
  redis.call("XADD", events_key, "MAXLEN", "~", EVENTS_KEPT, "*", "type", what, ...)
end

-- `job` is the id, the name and the queue of a task.
local function append_event_of(events_key, what, job, ...)
  append_event(events_key, what, "job_id", job[1], "job_type", job[2], "queue", job[3], ...)
end
