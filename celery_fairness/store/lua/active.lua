--[[
  active: the tenants of a queue that can start a task, ordered by virtual time.

  A tenant enters at the larger of its own finish and the queue's virtual time. The reason for which it was out
  does not matter. A tenant gets no credit for idle time, and no debt is forgiven.

  A tenant at its limit keeps its place in `blocked`. It may still be lent places (lending.lua). A tenant with nothing waiting keeps its place in `debts`
  until the virtual time has passed it, or until a claim finds no tenant. In the second case no tenant competes, and the
  virtual time goes on to the last tenant of `debts`.

  A queue has two wake-ups. `wakeup` gets a token when a task comes, and `wakeup_leftover` when a claim leaves a
  task. A worker that passed over what is left does not listen to `wakeup_leftover`, but `wakeup` still wakes it.
]]

-- `ctx.ranked` is set if a claim has requested the highest rank of a queue (the clock's `ranked`). Then
-- priorities.lua keeps the members by rank.

-- Returns the active tenant at a place of a queue: key and start, and the rank if the highest goes first.
-- Returns an empty table if the place is empty.
function Active.member_at(ctx, queue, at, by_rank)
  if by_rank then return Priorities.at_rank(ctx, queue, at) end
  return redis.call("ZRANGE", ctx.prefix .. Keys.ACTIVE .. queue, at, at, "WITHSCORES")
end

-- Returns whether some tenant of a queue may start a task, if the limit of the queue as a whole lets it.
function Active.may_start(ctx, queue)
  return redis.call("EXISTS", ctx.prefix .. Keys.ACTIVE .. queue) == 1
    or redis.call("ZCOUNT", ctx.prefix .. Keys.AVAILABLE .. queue, 0, "+inf") > 0
end

function Active.wake_worker(ctx, queue)
  local wakeup = ctx.prefix .. Keys.WAKEUP .. queue
  if redis.call("EXISTS", wakeup) == 1 then return end
  redis.call("RPUSH", wakeup, "1")
  Rings.note_wakeup(ctx, "new", queue)
end

-- Wakes another worker for the tasks that a claim left. If nothing is left, it removes the wake-ups, because
-- one for nothing only wakes a worker. `exhausted` is true if the queue's own limit lets nothing start. Returns
-- true if no tenant may start anything, none may be lent a place, and `exhausted` is false.
function Active.wake_next(ctx, queue, limited_here, exhausted)
  local active_key, left = ctx.prefix .. Keys.ACTIVE .. queue, ctx.prefix .. Keys.WAKEUP_LEFTOVER .. queue
  -- Usually both keys exist.
  local there = redis.call("EXISTS", active_key, left)
  if exhausted or there < 2 and redis.call("EXISTS", active_key) == 0 and not (limited_here
    and redis.call("ZCOUNT", ctx.prefix .. Keys.AVAILABLE .. queue, 0, "+inf") > 0)
    and not Lending.is_open(ctx, queue) then
    redis.call("DEL", ctx.prefix .. Keys.WAKEUP .. queue, left)
    Rings.drop_wakeups(ctx, queue)
    return not exhausted
  elseif there < 2 and redis.call("EXISTS", left) == 0 then
    redis.call("RPUSH", left, "1")
    Rings.note_wakeup(ctx, "left", queue)
  end
end

-- Returns the queues in which something waits, in their order, and then the others.
function Active.with_tasks(ctx, queues)
  local counts = redis.call("HMGET", ctx.prefix .. Keys.WAITING, unpack(queues))
  local some, others = {}, {}
  for index = 1, #queues do
    local queue = queues[index]
    if counts[index] then
      some[#some + 1] = queue
    else
      others[#others + 1] = queue
    end
  end
  return some, others
end

-- Removes the wake-ups of queues in which nothing waits, because they would wake a worker for nothing.
function Active.clear_wakeups(ctx, queues)
  local wakeups = {}
  for index = 1, #queues do
    wakeups[#wakeups + 1] = ctx.prefix .. Keys.WAKEUP .. queues[index]
    wakeups[#wakeups + 1] = ctx.prefix .. Keys.WAKEUP_LEFTOVER .. queues[index]
  end
  if next(wakeups) then redis.call("DEL", unpack(wakeups)) end
end

-- Keeps the indexes of a tenant's place in a queue after the place, or what of the tenant is ready, may have changed.
function Active.note_place(ctx, queue, key)
  Priorities.rank_again(ctx, queue, key)
  Lending.note(ctx, queue, key)
end

function Active.virtual_time(ctx, queue)
  return tonumber(redis.call("HGET", ctx.prefix .. Keys.VIRTUAL_TIMES, "queue " .. queue) or 0)
end

-- Enters a tenant that had nothing waiting in the queue and has a task now.
function Active.enter(ctx, queue, key)
  local out = ctx.prefix .. Keys.DEBTS .. queue
  Active.enter_from(ctx, queue, key, out, redis.call("ZSCORE", out, key))
end

-- Enters a tenant that may be no longer at its limit.
function Active.unblock(ctx, queue, key)
  local blocked_key = ctx.prefix .. Keys.BLOCKED .. queue
  local finish = redis.call("ZSCORE", blocked_key, key)
  if finish then Active.enter_from(ctx, queue, key, blocked_key, finish) end
end

-- Moves a tenant from a table to the active tenants. `finish` is its finish in the table, or nil if it is not there.
function Active.enter_from(ctx, queue, key, from, finish)
  local start = Active.virtual_time(ctx, queue)
  if finish then
    redis.call("ZREM", from, key)
    start = math.max(start, tonumber(finish))
  end
  redis.call("ZADD", ctx.prefix .. Keys.ACTIVE .. queue, start, key)
  Active.note_place(ctx, queue, key)
  Active.wake_worker(ctx, queue)
end

-- Removes a tenant that has nothing waiting any more. Its finish stays in `debts` while it is a debt. If the
-- tenant was charged, the caller passes its `finish`.
function Active.leave(ctx, queue, key, finish)
  local active_key, blocked_key = ctx.prefix .. Keys.ACTIVE .. queue, ctx.prefix .. Keys.BLOCKED .. queue
  finish = finish or redis.call("ZSCORE", active_key, key) or redis.call("ZSCORE", blocked_key, key)
  if redis.call("ZREM", active_key, key) == 0 then redis.call("ZREM", blocked_key, key) end
  if tonumber(finish) > Active.virtual_time(ctx, queue) then
    redis.call("ZADD", ctx.prefix .. Keys.DEBTS .. queue, finish, key)
  end
  Active.note_place(ctx, queue, key)
end

-- Moves the virtual time on to the last tenant of `debts`, because no tenant competes for the free room.
function Active.forget_debts(ctx, queue)
  local out = ctx.prefix .. Keys.DEBTS .. queue
  local greatest = redis.call("ZRANGE", out, -1, -1, "WITHSCORES")[2]
  if not greatest then return end
  redis.call("UNLINK", out)
  if tonumber(greatest) > Active.virtual_time(ctx, queue) then
    redis.call("HSET", ctx.prefix .. Keys.VIRTUAL_TIMES, "queue " .. queue, greatest)
  end
end

-- One task clears away at most 4 debts that the virtual time has passed.
local CLEAR_AT_MOST = 4

-- Clears debts after a claim of `tasks` tasks. `virtual` is the queue's virtual time now. It is nil if the claim neither
-- moved it nor added a debt, because then at most older debts are left to clear. `wanted` is true if the claim wanted
-- more tasks and no tenant may start anything.
function Active.clear_debts(ctx, queue, virtual, tasks, wanted)
  if wanted and not Rings.is_partition(ctx) then return Active.forget_debts(ctx, queue) end
  if not virtual then return end
  local out = ctx.prefix .. Keys.DEBTS .. queue
  local passed = redis.call("ZRANGEBYSCORE", out, "-inf", virtual, "LIMIT", 0, CLEAR_AT_MOST * tasks)
  if #passed > 0 then redis.call("ZREM", out, unpack(passed)) end
end

-- Forgets the virtual time and the debts of a queue in which nothing waits, so it begins anew.
function Active.forget_queue(ctx, queue)
  local wakeup, left = ctx.prefix .. Keys.WAKEUP .. queue, ctx.prefix .. Keys.WAKEUP_LEFTOVER .. queue
  if Rings.is_partition(ctx) then
    redis.call("UNLINK", wakeup, left)
    Rings.drop_wakeups(ctx, queue)
    Rings.note_idle(ctx, queue)
  else
    redis.call("HDEL", ctx.prefix .. Keys.VIRTUAL_TIMES, "queue " .. queue)
    redis.call("UNLINK", ctx.prefix .. Keys.DEBTS .. queue, wakeup, left)
  end
  Priorities.forget_ranks(ctx, queue)
end
