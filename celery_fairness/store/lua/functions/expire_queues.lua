--[[
  expire_queues: keep queues that end when nobody uses them, and end the one that is over longest.

  A use only moves the end away. So a user that keeps a queue for a shorter time takes nothing from a user that
  keeps it for longer. A queue that was declared without an end has none until it is declared with one.

  A queue that ends forgets its waiting tasks, a bounded part in each call. Tasks that run stay. If the time of a
  used queue is over, the queue ends first, and the use makes it anew. A user who may only put ends none.

  args[1]  frozen_ms str  "" in production (server TIME); set only by tests
  args[2]  declared  str  "declared" if the queues are declared now, "" if they are used
  args[3+] used      str  pairs of a queue and the ms that it is kept without a use; 0 is for ever

  Returns in how many ms the caller calls again. It returns 0 if there is more to do, and -1 if no queue will end.
  It returns -2 if a used queue has ended and some of its tasks are left. The caller then repeats the call, and
  the use counts only after that.
    -2 ENDS_FIRST
]]
register("expire_queues", {"allow-oom"}, function(keys, args)
  local ctx, frozen_ms, declared = {prefix = keys[1], memo = {}, result = {}}, args[1], args[2]
  Clock.read_context(ctx)
  local now = Clock.server_now(frozen_ms)
  local unused = ctx.prefix .. Keys.QUEUE_EXPIRY

  for index = 3, #args, 2 do
    local queue, kept_ms = args[index], tonumber(args[index + 1])
    -- A consumer that keeps the queue for ever has only called late. A queue with a consumer does not end.
    if (kept_ms > 0 or declared ~= "") and Queues.has_ended(ctx, queue, now) and Queues.may_end(ctx, queue) then
      if Lanes.forget_waiting(ctx, queue) == Lanes.PURGED_AT_MOST then return -2 end
      redis.call("ZREM", unused, queue)
    end
    if kept_ms == 0 then
      -- A user with an older declaration does not move this end.
      redis.call("ZADD", unused, "XX", "+inf", queue)
    else
      if declared ~= "" and redis.call("ZSCORE", unused, queue) == "inf" then
        redis.call("ZREM", unused, queue)
      end
      redis.call("ZADD", unused, "GT", now + kept_ms, queue)
    end
  end

  local first = redis.call("ZRANGE", unused, 0, 0, "WITHSCORES")
  local queue, ends = first[1], first[2]
  local wait_ms = -1
  if queue and ends ~= "inf" then
    wait_ms = math.max(0, tonumber(ends) - now)
    if not Queues.may_end(ctx, queue) then
      wait_ms = -1
    elseif wait_ms == 0 and Lanes.forget_waiting(ctx, queue) < Lanes.PURGED_AT_MOST then
      redis.call("ZREM", unused, queue)
    end
  end
  return wait_ms
end)
