--[[
  ranks: the members of a queue's ring by their rank, for claims that take the highest rank first.

  `rank:RANK QUEUE` holds the members of `ring:QUEUE` whose first ready task has this rank, with their
  start; `ranked:QUEUE` says of each member by which rank it stands. Both are kept once a claim has asked
  for them (the clock's `ranked`). Who was in a ring then stands in `unranked:QUEUE` until a claim has
  looked at it, some at a time; until then the queue is served as if no claim had asked.
]]

local HIGHEST = 9

-- What is ready of a member, or its start, may be another, or it may have left.
function Priorities.rank_again(ctx, queue, key)
  local start = redis.call("ZSCORE", ctx.prefix .. "ring:" .. queue, key)
  local part = start and redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, nil, queue), 0, 0)[1]
  local rank = part and string.sub(part, 1, 1)
  local before = redis.call("ZSCORE", ctx.prefix .. "ranked:" .. queue, key)
  if before and before ~= rank then
    redis.call("ZREM", ctx.prefix .. "rank:" .. before .. " " .. queue, key)
    if not rank then redis.call("ZREM", ctx.prefix .. "ranked:" .. queue, key) end
  end
  if not rank then return end
  redis.call("ZADD", ctx.prefix .. "rank:" .. rank .. " " .. queue, start, key)
  if before ~= rank then redis.call("ZADD", ctx.prefix .. "ranked:" .. queue, rank, key) end
end

-- Nothing waits in the queue any more.
function Priorities.forget_ranks(ctx, queue)
  redis.call("UNLINK", ctx.prefix .. "ranked:" .. queue, ctx.prefix .. "unranked:" .. queue)
end

function Priorities.rank_anew(ctx, queue)
  redis.call("COPY", ctx.prefix .. "ring:" .. queue, ctx.prefix .. "unranked:" .. queue, "REPLACE")
end

-- Looks at no more than `most` members that were here before. Returns whether there are none.
function Priorities.rank_some(ctx, queue, most)
  local some = redis.call("ZPOPMIN", ctx.prefix .. "unranked:" .. queue, most)
  for index = 1, #some, 2 do Priorities.rank_again(ctx, queue, some[index]) end
  if #some > 0 then return #some < 2 * most end
  if redis.call("ZCARD", ctx.prefix .. "ring:" .. queue) == redis.call("ZCARD", ctx.prefix .. "ranked:" .. queue) then
    return true
  end
  -- Somebody has deleted keys.
  for rank = 0, HIGHEST do redis.call("UNLINK", ctx.prefix .. "rank:" .. rank .. " " .. queue) end
  redis.call("UNLINK", ctx.prefix .. "ranked:" .. queue)
  Priorities.rank_anew(ctx, queue)
  return false
end

-- A claim takes the highest rank first. Returns by queue whether it can, and whether it cannot everywhere.
function Priorities.rank_queues(ctx, queues, most)
  if not ctx.ranked then
    ctx.ranked = "1"
    redis.call("HSET", ctx.prefix .. "clock", "ranked", 1)
    local waiting = redis.call("HKEYS", ctx.prefix .. "waiting")
    for index = 1, #waiting do Priorities.rank_anew(ctx, waiting[index]) end
  end
  local by_queue, more = {}, false
  for index = 1, #queues do
    local queue = queues[index]
    by_queue[queue] = Priorities.rank_some(ctx, queue, most)
    more = more or not by_queue[queue]
  end
  return by_queue, more
end

-- Who stands at a place, the highest rank first: key, start and rank; nothing in it where nobody does.
function Priorities.at_rank(ctx, queue, at)
  local below_first = 0
  if at == 0 then
    -- The ranks above it have nobody.
    local first = redis.call("ZRANGE", ctx.prefix .. "ranked:" .. queue, -1, -1, "WITHSCORES")[2]
    if not first then return {} end
    below_first = HIGHEST - tonumber(first)
  end
  for below = below_first, HIGHEST do
    local rank = tostring(HIGHEST - below)
    local member = redis.call("ZRANGE", ctx.prefix .. "rank:" .. rank .. " " .. queue, at, at, "WITHSCORES")
    if member[1] then return {member[1], member[2], rank} end
    if at > 0 then at = at - redis.call("ZCARD", ctx.prefix .. "rank:" .. rank .. " " .. queue) end
  end
  return {}
end
