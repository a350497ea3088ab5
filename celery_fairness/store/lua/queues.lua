--[[
  ended: whether a queue with an end has ended, because nobody used it. `unused` has the times.

  What waits in such a queue is neither served nor counted. Its next use or a look forgets it (unused.lua).
]]

-- now: the server's time, in ms.
function Queues.has_ended(ctx, queue, now)
  local ends = redis.call("ZSCORE", ctx.prefix .. "unused", queue)
  return ends and ends ~= "inf" and tonumber(ends) <= now
end

-- Returns those of some queues that have not ended.
function Queues.not_ended(ctx, queues, now)
  local left = {}
  for index = 1, #queues do
    if not Queues.has_ended(ctx, queues[index], now) then left[#left + 1] = queues[index] end
  end
  return left
end
