--[[
  ended: whether a queue with an end has ended, because nobody used it. `unused` has the times.

  What waits in such a queue is neither served nor counted. Its next use or a look forgets it (unused.lua).
]]

-- now: the server's time, in ms.
local function has_ended(prefix, queue, now)
  local ends = redis.call("ZSCORE", prefix .. "unused", queue)
  return ends and ends ~= "inf" and tonumber(ends) <= now
end

-- Returns those of some queues that have not ended.
local function not_ended(prefix, queues, now)
  local left = {}
  for index = 1, #queues do
    if not has_ended(prefix, queues[index], now) then left[#left + 1] = queues[index] end
  end
  return left
end
