--[[
  The ring of a queue: the tenants that could start something, ordered by virtual time.

  A tenant enters at the larger of its own finish and the ring's virtual time, for whatever reason
  it was out: no credit for having been idle, no debt forgiven. A tenant that is at its limit keeps
  its place in `full`, one that has nothing waiting in `out` until the ring has passed it, or until
  a claim finds nobody: then nobody competes, and the ring goes on to the last of them.

  A queue has two bells. `bell` says that something came, `left` that a claim left something: a worker
  that passed it over does not listen to that one, and hears of what comes all the same.
]]

-- `ctx.ranked` says whether a claim has asked for the highest rank of a queue (the clock's `ranked`): then
-- priorities.lua keeps the members by rank.

-- Who stands at a place of a queue's ring: key and start, and rank where the highest goes first; nothing
-- in it where nobody does.
function Active.member_at(ctx, queue, at, by_rank)
  if by_rank then return Priorities.at_rank(ctx, queue, at) end
  return redis.call("ZRANGE", ctx.prefix .. "ring:" .. queue, at, at, "WITHSCORES")
end

function Active.ring_bell(ctx, queue)
  local bell = ctx.prefix .. "bell:" .. queue
  if redis.call("EXISTS", bell) == 0 then redis.call("RPUSH", bell, "1") end
end

-- What a claim left is for somebody else who sleeps; a bell for nothing would only wake.
-- `shut` where the queue's own limit lets nothing start. Returns whether nobody else may start.
function Active.pass_on(ctx, queue, limited_here, shut)
  local ring, left = ctx.prefix .. "ring:" .. queue, ctx.prefix .. "left:" .. queue
  -- Mostly both are there.
  local there = redis.call("EXISTS", ring, left)
  if shut or there < 2 and redis.call("EXISTS", ring) == 0 and not (limited_here
    and redis.call("ZCOUNT", ctx.prefix .. "candidates:" .. queue, 0, "+inf") > 0) then
    redis.call("DEL", ctx.prefix .. "bell:" .. queue, left)
    return not shut
  elseif there < 2 and redis.call("EXISTS", left) == 0 then
    redis.call("RPUSH", left, "1")
  end
end

-- Returns the queues in which something waits, in their order, and the others.
function Active.with_tasks(ctx, queues)
  local counts = redis.call("HMGET", ctx.prefix .. "waiting", unpack(queues))
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

-- Nothing waits in these: a bell would wake for nothing.
function Active.hush(ctx, queues)
  local bells = {}
  for index = 1, #queues do
    bells[#bells + 1] = ctx.prefix .. "bell:" .. queues[index]
    bells[#bells + 1] = ctx.prefix .. "left:" .. queues[index]
  end
  if next(bells) then redis.call("DEL", unpack(bells)) end
end

function Active.virtual_time(ctx, queue)
  return tonumber(redis.call("HGET", ctx.prefix .. "virtual", queue) or 0)
end

-- A tenant that had nothing waiting in the queue has something now.
function Active.enter(ctx, queue, key)
  local start = Active.virtual_time(ctx, queue)
  local out = ctx.prefix .. "out:" .. queue
  local finish = redis.call("ZSCORE", out, key)
  if finish then
    redis.call("ZREM", out, key)
    start = math.max(start, tonumber(finish))
  end
  redis.call("ZADD", ctx.prefix .. "ring:" .. queue, start, key)
  if ctx.ranked then Priorities.rank_again(ctx, queue, key) end
  Active.ring_bell(ctx, queue)
end

-- A tenant may be no longer at its limit.
function Active.enter_again(ctx, queue, key)
  local full = ctx.prefix .. "full:" .. queue
  local finish = redis.call("ZSCORE", full, key)
  if not finish then return end
  redis.call("ZREM", full, key)
  local start = math.max(Active.virtual_time(ctx, queue), tonumber(finish))
  redis.call("ZADD", ctx.prefix .. "ring:" .. queue, start, key)
  if ctx.ranked then Priorities.rank_again(ctx, queue, key) end
  Active.ring_bell(ctx, queue)
end

-- A tenant has nothing waiting any more: its finish outlives its place while it is a debt. Where it
-- was charged, its `finish` and the ring's time are told.
function Active.leave(ctx, queue, key, finish, virtual)
  local ring, full = ctx.prefix .. "ring:" .. queue, ctx.prefix .. "full:" .. queue
  finish = finish or redis.call("ZSCORE", ring, key) or redis.call("ZSCORE", full, key)
  if redis.call("ZREM", ring, key) == 0 then redis.call("ZREM", full, key) end
  if tonumber(finish) > (virtual or Active.virtual_time(ctx, queue)) then
    redis.call("ZADD", ctx.prefix .. "out:" .. queue, finish, key)
  end
  if ctx.ranked then Priorities.rank_again(ctx, queue, key) end
end

-- Nobody competes for what is free: the ring goes on to where the last of those who are out is.
function Active.forget_debts(ctx, queue, virtual)
  local out = ctx.prefix .. "out:" .. queue
  local greatest = redis.call("ZRANGE", out, -1, -1, "WITHSCORES")[2]
  if not greatest then return end
  redis.call("UNLINK", out)
  if tonumber(greatest) > (virtual or Active.virtual_time(ctx, queue)) then
    redis.call("HSET", ctx.prefix .. "virtual", queue, greatest)
  end
end

-- Debts that the ring has passed and one task clears away.
local CLEAR_AT_MOST = 4

-- A claim of `tasks` took some of the queue, whose time is now `virtual`; nil where it took none.
-- `wanted` where it wanted more, and nobody may start anything.
function Active.forget_passed(ctx, queue, virtual, tasks, wanted)
  if wanted then return Active.forget_debts(ctx, queue, virtual) end
  if not virtual then return end
  local out = ctx.prefix .. "out:" .. queue
  local passed = redis.call("ZRANGEBYSCORE", out, "-inf", virtual, "LIMIT", 0, CLEAR_AT_MOST * tasks)
  if #passed > 0 then redis.call("ZREM", out, unpack(passed)) end
end

-- The queue has nothing waiting any more: its ring begins anew.
function Active.forget_ring(ctx, queue)
  redis.call("HDEL", ctx.prefix .. "virtual", queue)
  redis.call("UNLINK",
    ctx.prefix .. "out:" .. queue, ctx.prefix .. "bell:" .. queue, ctx.prefix .. "left:" .. queue)
  if ctx.ranked then Priorities.forget_ranks(ctx, queue) end
end
