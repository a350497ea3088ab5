--[[
  gate_ends: parked tasks that do not start: people cancelled them, or they expired. It is told once; from
  then on the record says that it expired at 0, so whoever gives it to a worker, and be it the second,
  has it ended.
]]
--- @include "events"
--- @include "gate_parked"

local function tell_parked_end(prefix, tag, record, what)
  local seq, expires, rest, message = string.match(record, "^(%d+) (%d*) ([^\n]*\n(.*))$")
  if expires == "0" then return end
  -- It is the last of that name: headers stand before it.
  local queue = string.match(message, ".*\"routing_key\": ?\"([^\"]*)\"") or ""
  write_event_of(prefix, what, queue, {tag = tag, kind = ""}, message)
  redis.call("HSET", prefix .. "gate_tasks", tag, seq .. " 0 " .. rest)
end
