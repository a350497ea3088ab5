--[[
  Tasks that wait for their time: `later:QUEUE`, in the order of their times, and of their puts where
  those are one.

  A task whose time has come begins to wait now: last in its lane.
]]
--- @include "lanes"

-- So many characters stand before the record, to order those of one time.
local ORDER_LENGTH = 17

local function wait_until(prefix, queue, task, message, eta_ms)
  local later = prefix .. "later:" .. queue
  local member = string.format("%016.0f ", task.seq) .. write_record(task, message)
  redis.call("ZADD", later, eta_ms, member)
  -- Who sleeps until a later time must wake and sleep anew.
  if redis.call("ZRANK", later, member) == 0 then ring_bell(prefix, queue) end
end

-- Returns how long until the next time comes; nil where nothing waits for one.
local function bring_in(prefix, queue, now, most)
  local later = prefix .. "later:" .. queue
  local next_due = redis.call("ZRANGE", later, 0, 0, "WITHSCORES")[2]
  if not next_due or tonumber(next_due) > now then return next_due and tonumber(next_due) - now end
  local due = redis.call("ZRANGEBYSCORE", later, "-inf", now, "LIMIT", 0, most)
  for index = 1, #due do
    redis.call("ZREM", later, due[index])
    local task, message = read_record(string.sub(due[index], ORDER_LENGTH + 1))
    task.seq = redis.call("INCR", prefix .. "sequence")
    enqueue(prefix, queue, task, message, false, false)
  end
  -- Whether one is left is looked at by the next claim.
  return 0
end
