--[[
  priorities: the active tenants of a queue by their rank, for claims that take the highest rank first.

  `ranked:QUEUE` and `rank:RANK QUEUE` are the index of `active:QUEUE`. The functions keep it once a claim has requested
  ranks (the clock's `ranked`). Each claim looks at some of the tenants that waited then, which `ages:QUEUE` has. Until
  none is left, the claims serve the queue as if no claim had requested ranks.
]]

local HIGHEST = 9

-- Returns the rank of a tenant's first ready task and its start among the active tenants, or nil if it has no such place.
function Priorities.rank_of(ctx, queue, key)
  local start = redis.call("ZSCORE", ctx.prefix .. Keys.ACTIVE .. queue, key)
  local lane = start and Lanes.first_lane(ctx, queue, key)
  if lane then return Lanes.rank_in(ctx, Lanes.order_name(key, nil, queue), lane), start end
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
  redis.call("UNLINK", ctx.prefix .. Keys.RANKED .. queue, ctx.prefix .. Keys.AGES .. queue)
end

-- In `ages:QUEUE`, this score is that of a tenant that no claim has looked at.
local UNRANKED = 0

-- Returns whether no claim has looked at a tenant of a queue since claims request ranks.
function Priorities.is_unranked(ctx, queue, key)
  return redis.call("ZSCORE", ctx.prefix .. Keys.AGES .. queue, key) ~= false
end

-- Looks at no more than `most` tenants that waited before. Returns whether none is left.
function Priorities.rank_some(ctx, queue, now, most)
  local ages = ctx.prefix .. Keys.AGES .. queue
  local some = redis.call("ZRANGEBYSCORE", ages, UNRANKED, UNRANKED, "LIMIT", 0, most)
  if #some > 0 then redis.call("ZREM", ages, unpack(some)) end
  for index = 1, #some do
    Aging.note_tenant(ctx, queue, some[index], now)
    Priorities.rank_again(ctx, queue, some[index])
  end
  return #some < most
end

-- Notes that claims request ranks or aging. A blocked tenant needs no rank, but its tasks have an age.
function Priorities.begin(ctx, ranked)
  local was_on = Aging.is_on(ctx)
  ctx.ranked = ranked
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "ranked", ranked)
  if was_on then return end
  local waiting = redis.call("HKEYS", ctx.prefix .. Keys.WAITING)
  for index = 1, #waiting do
    local active, blocked = ctx.prefix .. Keys.ACTIVE .. waiting[index], ctx.prefix .. Keys.BLOCKED .. waiting[index]
    local ages = ctx.prefix .. Keys.AGES .. waiting[index]
    if Aging.is_on(ctx) then
      redis.call("ZUNIONSTORE", ages, 2, active, blocked, "WEIGHTS", UNRANKED, UNRANKED)
    else
      redis.call("ZUNIONSTORE", ages, 1, active, "WEIGHTS", UNRANKED)
    end
  end
end

-- Prepares the queues for a claim that takes the highest rank first. `aging` is the time after which a task goes as
-- one of the highest, in ms, or "". Returns by queue whether the claim can take the highest first, and whether more is
-- left to do.
function Priorities.rank_queues(ctx, queues, aging, now, most)
  if not ctx.ranked or aging ~= "" and ctx.ranked ~= aging then Priorities.begin(ctx, aging == "" and "1" or aging) end
  local by_queue, more = {}, false
  for index = 1, #queues do
    local queue = queues[index]
    by_queue[queue] = Priorities.rank_some(ctx, queue, now, most)
    more = aging ~= "" and Aging.raise(ctx, queue, now, most) or more or not by_queue[queue]
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
