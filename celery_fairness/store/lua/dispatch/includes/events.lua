--[[
  events: what happened, told in the stream `events` by the script that did it.
]]
--- @include "stream"

local function write_event(prefix, what, ...)
  append_event(prefix .. "events", what, ...)
end

-- A task's id and name, as the plain headers say that its message begins with, else its tag and kind;
-- and its queue.
local function job_of(queue, task, message)
  local at = string.find(message, "\"headers\":", 1, true)
  local plain = at and string.match(message, "^\"headers\": ?{([^{%[]*)", at) or ""
  return {string.match(plain, "\"id\": ?\"([^\"\\]+)\"") or task.tag,
    string.match(plain, "\"task\": ?\"([^\"\\]+)\"") or task.kind, queue}
end

local function write_event_of(prefix, what, queue, task, message, ...)
  append_event_of(prefix .. "events", what, job_of(queue, task, message), ...)
end
