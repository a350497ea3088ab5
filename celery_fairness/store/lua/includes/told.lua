--[[
  told: of a task that limits refuse it is told once what refused it, and once that it starts.

  What was told is kept with the task: STRATEGY|KEY; "" is nothing, "-" that it started too.

  events_key  stream  the installation's
  job         str     of a gate's task: its id, name and queue as JSON; "" where the asker has none
]]
--- @include "stream"

-- What refuses a task whose tenant is at its tier's limit; an unlimited one, which others wait for since
-- longer, says 0.
local function at_tier(key, limit, held)
  local strategy = limit == 0 and "paused" or "concurrency"
  return {key = key, strategy = strategy, limit = math.max(0, limit), current = held}
end

-- `closed` says strategy, key, limit and current. Returns what is told now.
local function tell_exceeded(events_key, job, closed)
  append_event_of(events_key, "rate_limit.exceeded", job, "key", closed.key,
    "strategy", closed.strategy, "limit", closed.limit, "current", closed.current)
  return closed.strategy .. "|" .. closed.key
end

local function tell_released(events_key, job, told)
  local strategy, key = string.match(told, "^([^|]*)|(.*)$")
  append_event_of(events_key, "rate_limit.released", job, "key", key, "strategy", strategy)
end

-- A gate lets a task start: `memory` is what copies.lua knows of its message.
local function tell_admitted(events_key, job, memory)
  if job == "" or memory.told == "" or memory.told == "-" then return end
  tell_released(events_key, cjson.decode(job), memory.told)
  memory.told = "-"
end
