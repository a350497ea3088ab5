--[[
  events: what happened, told in the stream `events` by the script that did it. Their ids and times are
  the stream's.
]]

-- So many are kept, and the rest of a block of the stream.
local EVENTS_KEPT = 10000

local function write_event(prefix, what, ...)
  redis.call("XADD", prefix .. "events", "MAXLEN", "~", EVENTS_KEPT, "*", "type", what, ...)
end

-- A task's id and name, as the plain headers say that its message begins with; else its tag and kind.
local function names_of(task, message)
  local at = string.find(message, "\"headers\":", 1, true)
  local plain = at and string.match(message, "^\"headers\": ?{([^{%[]*)", at) or ""
  return string.match(plain, "\"id\": ?\"([^\"\\]+)\"") or task.tag,
    string.match(plain, "\"task\": ?\"([^\"\\]+)\"") or task.kind
end

local function write_event_of(prefix, what, queue, task, message, ...)
  local id, name = names_of(task, message)
  write_event(prefix, what, "job_id", id, "job_type", name, "queue", queue, ...)
end
