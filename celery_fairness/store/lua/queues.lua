--[[
  queues: which queues have tasks, and which have ended.

  A queue with an end has ended if nobody used it until then. `queue_expiry` stores the times.
  The functions neither serve nor count the tasks that wait in such a queue. The next use of the queue, or a
  look at it, forgets them (expire_queues.lua).
]]

-- now: the server's time, in ms.
function Queues.has_ended(ctx, queue, now)
  local ends = redis.call("ZSCORE", ctx.prefix .. Keys.QUEUE_EXPIRY, queue)
  return ends and ends ~= "inf" and tonumber(ends) <= now
end

-- Returns the queues that have not ended.
function Queues.not_ended(ctx, queues, now)
  local left = {}
  for index = 1, #queues do
    if not Queues.has_ended(ctx, queues[index], now) then left[#left + 1] = queues[index] end
  end
  return left
end

-- `queues` has the names of the queues with a delayed task or a dead letter, so that people who look need not search
-- the names of all keys. `waiting` has those in which a task waits in a lane.
function Queues.note(ctx, queue)
  redis.call("SADD", ctx.prefix .. Keys.QUEUES, queue)
end

-- Returns whether no task waits in a lane of a queue.
function Queues.is_empty(ctx, queue)
  return redis.call("HEXISTS", ctx.prefix .. Keys.WAITING, queue) == 0
end

-- A delayed task or a dead letter has left a queue.
function Queues.forget_empty(ctx, queue)
  if redis.call("EXISTS", ctx.prefix .. Keys.SCHEDULED .. queue, ctx.prefix .. Keys.DEAD .. queue) == 0 then
    redis.call("SREM", ctx.prefix .. Keys.QUEUES, queue)
  end
end

-- Returns whether the user who calls may take tasks out of a queue. One who may only put leaves that to others.
function Queues.may_end(ctx, queue)
  return redis.acl_check_cmd("DEL", ctx.prefix .. Keys.WAKEUP .. queue)
end
