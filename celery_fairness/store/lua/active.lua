--[[
  The ring of a queue: the tenants that can start a task, ordered by virtual time.

  A tenant enters at the larger of its own finish and the ring's virtual time. The reason for which it was out
  does not matter. A tenant gets no credit for idle time, and no debt is forgiven.

  A tenant at its limit keeps its place in `blocked`. A tenant with nothing waiting keeps its place in `debts`
  until the ring has passed it, or until a claim finds no tenant. In the second case no tenant competes, and the
  ring goes on to the last tenant of `debts`.

  A queue has two wake-ups. `wakeup` gets a token when a task comes, and `wakeup_leftover` when a claim leaves a
  task. A worker that passed over what is left does not listen to `wakeup_leftover`, but `wakeup` still wakes it.
]]

-- `ctx.ranked` is set if a claim has requested the highest rank of a queue (the clock's `ranked`). Then
-- priorities.lua keeps the members by rank.

-- Returns the member at a place of a queue's ring: key and start, and the rank if the highest goes first.
-- Returns an empty table if the place is empty.
function Active.member_at(ctx, queue, at, by_rank)
  if by_rank then return Priorities.at_rank(ctx, queue, at) end
  return redis.call("ZRANGE", ctx.prefix .. Keys.ACTIVE .. queue, at, at, "WITHSCORES")
end

function Active.wake_worker(ctx, queue)
  local bell = ctx.prefix .. Keys.WAKEUP .. queue
  if redis.call("EXISTS", bell) == 0 then redis.call("RPUSH", bell, "1") end
end

-- Wakes another worker for the tasks that a claim left. If nothing is left it removes the bells, because a
-- bell for nothing only wakes a worker. `shut` is true if the queue's own limit lets nothing start. Returns
-- true if no tenant may start anything and `shut` is false.
function Active.pass_on(ctx, queue, limited_here, shut)
  local ring, left = ctx.prefix .. Keys.ACTIVE .. queue, ctx.prefix .. Keys.WAKEUP_LEFTOVER .. queue
  -- Usually both keys exist.
  local there = redis.call("EXISTS", ring, left)
  if shut or there < 2 and redis.call("EXISTS", ring) == 0 and not (limited_here
    and redis.call("ZCOUNT", ctx.prefix .. Keys.AVAILABLE .. queue, 0, "+inf") > 0) then
    redis.call("DEL", ctx.prefix .. Keys.WAKEUP .. queue, left)
    return not shut
  elseif there < 2 and redis.call("EXISTS", left) == 0 then
    redis.call("RPUSH", left, "1")
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

-- Removes the bells of queues in which nothing waits, because they would wake a worker for nothing.
function Active.clear_wakeups(ctx, queues)
  local bells = {}
  for index = 1, #queues do
    bells[#bells + 1] = ctx.prefix .. Keys.WAKEUP .. queues[index]
    bells[#bells + 1] = ctx.prefix .. Keys.WAKEUP_LEFTOVER .. queues[index]
  end
  if next(bells) then redis.call("DEL", unpack(bells)) end
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
function Active.enter_again(ctx, queue, key)
  local full = ctx.prefix .. Keys.BLOCKED .. queue
  local finish = redis.call("ZSCORE", full, key)
  if finish then Active.enter_from(ctx, queue, key, full, finish) end
end

-- Moves a tenant from a table into the ring. `finish` is its finish in the table, or nil if it is not there.
function Active.enter_from(ctx, queue, key, from, finish)
  local start = Active.virtual_time(ctx, queue)
  if finish then
    redis.call("ZREM", from, key)
    start = math.max(start, tonumber(finish))
  end
  redis.call("ZADD", ctx.prefix .. Keys.ACTIVE .. queue, start, key)
  Priorities.rank_again(ctx, queue, key)
  Active.wake_worker(ctx, queue)
end

-- Removes a tenant that has nothing waiting any more. Its finish stays in `debts` while it is a debt. If the
-- tenant was charged, the caller passes its `finish` and the ring's virtual time.
function Active.leave(ctx, queue, key, finish, virtual)
  local ring, full = ctx.prefix .. Keys.ACTIVE .. queue, ctx.prefix .. Keys.BLOCKED .. queue
  finish = finish or redis.call("ZSCORE", ring, key) or redis.call("ZSCORE", full, key)
  if redis.call("ZREM", ring, key) == 0 then redis.call("ZREM", full, key) end
  if tonumber(finish) > (virtual or Active.virtual_time(ctx, queue)) then
    redis.call("ZADD", ctx.prefix .. Keys.DEBTS .. queue, finish, key)
  end
  Priorities.rank_again(ctx, queue, key)
end

-- Moves the ring on to the last tenant of `debts`, because no tenant competes for the free room.
function Active.forget_debts(ctx, queue, virtual)
  local out = ctx.prefix .. Keys.DEBTS .. queue
  local greatest = redis.call("ZRANGE", out, -1, -1, "WITHSCORES")[2]
  if not greatest then return end
  redis.call("UNLINK", out)
  if tonumber(greatest) > (virtual or Active.virtual_time(ctx, queue)) then
    redis.call("HSET", ctx.prefix .. Keys.VIRTUAL_TIMES, "queue " .. queue, greatest)
  end
end

-- One task clears away at most 4 debts that the ring has passed.
local CLEAR_AT_MOST = 4

-- Clears debts after a claim of `tasks` tasks. `virtual` is the queue's virtual time now. It is nil if the claim neither
-- moved it nor added a debt, because then at most older debts are left to clear. `wanted` is true if the claim wanted
-- more tasks and no tenant may start anything.
function Active.forget_passed(ctx, queue, virtual, tasks, wanted)
  if wanted then return Active.forget_debts(ctx, queue, virtual) end
  if not virtual then return end
  local out = ctx.prefix .. Keys.DEBTS .. queue
  local passed = redis.call("ZRANGEBYSCORE", out, "-inf", virtual, "LIMIT", 0, CLEAR_AT_MOST * tasks)
  if #passed > 0 then redis.call("ZREM", out, unpack(passed)) end
end

-- Forgets the ring of a queue in which nothing waits any more, so it begins anew.
function Active.forget_ring(ctx, queue)
  redis.call("HDEL", ctx.prefix .. Keys.VIRTUAL_TIMES, "queue " .. queue)
  redis.call("UNLINK",
    ctx.prefix .. Keys.DEBTS .. queue, ctx.prefix .. Keys.WAKEUP .. queue, ctx.prefix .. Keys.WAKEUP_LEFTOVER .. queue)
  Priorities.forget_ranks(ctx, queue)
end
