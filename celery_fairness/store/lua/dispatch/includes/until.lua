--[[
  until: a task begins to wait for its time: `later:QUEUE`, in the order of the times, and of their
  puts where those are one.
]]
--- @include "lanes"

local function wait_until(prefix, queue, task, message, eta_ms)
  local later = prefix .. "later:" .. queue
  local member = string.format("%016.0f ", task.seq) .. write_record(task, message)
  redis.call("ZADD", later, eta_ms, member)
  -- Who sleeps until a later time must wake and sleep anew.
  if redis.call("ZRANK", later, member) == 0 then ring_bell(prefix, queue) end
end
