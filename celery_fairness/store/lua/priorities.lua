--[[
  priorities: the active tenants of a queue by their rank, for claims that take the highest rank first.

  `ranked:QUEUE` and `rank:RANK QUEUE` are the index of `active:QUEUE`. The functions keep it once a claim has requested
  ranks (the clock's `ranked`). Each claim looks at some members of `unranked:QUEUE`. Until it is empty, the claims
  serve the queue as if no claim had requested ranks.
]]

local HIGHEST = 9

-- Returns the rank of a tenant's first ready task and its start among the active tenants, or nil if it has no such place.
function Priorities.rank_of(ctx, queue, key)
  local start = redis.call("ZSCORE", ctx.prefix .. Keys.ACTIVE .. queue, key)
  local lane = start and Lanes.first_lane(ctx, queue, key)
  if lane then return string.sub(lane, 1, 1), start end
end

-- Ranks a member again after its ready tasks or its start may have changed, or after it may have left.
function Priorities.rank_again(ctx, queue, key)
  if not ctx.ranked then return end
  local rank, start = Priorities.rank_of(ctx, queue, key)
  local before = redis.call("ZSCORE", ctx.prefix .. Keys.RANKED .. queue, key)
  if before and before ~= rank then
    redis.call("ZREM", ctx.prefix .. Keys.RANK .. before .. " " .. queue, key)
    if not rank then redis.call("ZREM", ctx.prefix .. Keys.RANKED .. queue, key) end
  end
  if not rank then return end
  redis.call("ZADD", ctx.prefix .. Keys.RANK .. rank .. " " .. queue, start, key)
  if before ~= rank then redis.call("ZADD", ctx.prefix .. Keys.RANKED .. queue, rank, key) end
end

-- Forgets the ranks of a queue in which nothing waits any more.
function Priorities.forget_ranks(ctx, queue)
  if not ctx.ranked then return end
  redis.call("UNLINK", ctx.prefix .. Keys.RANKED .. queue, ctx.prefix .. Keys.UNRANKED .. queue)
end

-- Looks at no more than `most` tenants that were active before. Returns whether none is left.
function Priorities.rank_some(ctx, queue, most)
  local some = redis.call("ZPOPMIN", ctx.prefix .. Keys.UNRANKED .. queue, most)
  for index = 1, #some, 2 do Priorities.rank_again(ctx, queue, some[index]) end
  return #some < 2 * most
end

-- Prepares the queues for a claim that takes the highest rank first. Returns by queue whether the claim can
-- do that, and whether any queue cannot.
function Priorities.rank_queues(ctx, queues, most)
  if not ctx.ranked then
    ctx.ranked = "1"
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "ranked", 1)
    local waiting = redis.call("HKEYS", ctx.prefix .. Keys.WAITING)
    for index = 1, #waiting do
      local queue = waiting[index]
      redis.call("COPY", ctx.prefix .. Keys.ACTIVE .. queue, ctx.prefix .. Keys.UNRANKED .. queue, "REPLACE")
    end
  end
  local by_queue, more = {}, false
  for index = 1, #queues do
    local queue = queues[index]
    by_queue[queue] = Priorities.rank_some(ctx, queue, most)
    more = more or not by_queue[queue]
  end
  return by_queue, more
end

-- Returns the member at a place, with the highest rank first: key, start and rank. Returns an empty table if
-- the place is empty.
function Priorities.at_rank(ctx, queue, at)
  local below_first = 0
  if at == 0 then
    -- The ranks above the first member's rank have no member.
    local first = redis.call("ZRANGE", ctx.prefix .. Keys.RANKED .. queue, -1, -1, "WITHSCORES")[2]
    if not first then return {} end
    below_first = HIGHEST - tonumber(first)
  end
  for below = below_first, HIGHEST do
    local rank = tostring(HIGHEST - below)
    local member = redis.call("ZRANGE", ctx.prefix .. Keys.RANK .. rank .. " " .. queue, at, at, "WITHSCORES")
    if member[1] then return {member[1], member[2], rank} end
    if at > 0 then at = at - redis.call("ZCARD", ctx.prefix .. Keys.RANK .. rank .. " " .. queue) end
  end
  return {}
end
