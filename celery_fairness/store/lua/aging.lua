--[[
  aging: a task that has waited long goes as one of the highest rank, if claims have requested that.

  Then `ranked` in the clock is the time after which it does so (ms). `ages:QUEUE` has "RANK KEY" for each rank of a
  tenant, except the highest. Its score is the server time since when the tenant has started no task of this rank, or
  that of the put of its first task. When this time is over, a claim raises the tenant's first lane of the rank, if its
  first task has waited as long. The lane stands first in its order until this task leaves it.

  The other entries of `ages:QUEUE` are those of priorities.lua. An entry may be older than every task of its rank. So a claim also reads when the first task of the lane was put.
]]

-- A tenant has lanes in several orders, one for each limit at which it waits. A claim looks at no more than 8 of them.
local ORDERS_AT_MOST = 8
-- A claim that requests this for the first time looks at no more than 64 lanes of a tenant.
local LANES_AT_MOST = 64

-- This score is due at once. Those of priorities.lua are below it.
local LEAST = 1

function Aging.is_on(ctx)
  return ctx.ranked and ctx.ranked ~= "1"
end

-- Notes since when a rank of a tenant waits. `option` is one of ZADD.
local function note_since(ctx, queue, key, rank, since, option)
  if not Aging.is_on(ctx) or rank == Lanes.HIGHEST or Promotions.is_parked(queue) then return end
  redis.call("ZADD", ctx.prefix .. Keys.AGES .. queue, option, since, rank .. " " .. key)
end

-- A task waits in a lane. `since` is the server time from which it does, as a text.
function Aging.note_waiting(ctx, queue, key, rank, since)
  note_since(ctx, queue, key, rank, since, "NX")
end

-- A task of a tenant has started. `is_last` is true if nothing of the tenant is left in the queue.
function Aging.note_start(ctx, queue, key, rank, is_last, rules)
  if not Aging.is_on(ctx) or rank == Lanes.HIGHEST or rules.promotes then return end
  local ages, member = ctx.prefix .. Keys.AGES .. queue, rank .. " " .. key
  if is_last then
    redis.call("ZREM", ages, member)
  else
    redis.call("ZADD", ages, rules.now, member)
  end
end

-- Returns the server time since when a task waits. `now` stands for it if the record of the task is lost.
local function put_of(ctx, tag, now)
  local head = redis.call("HGET", ctx.prefix .. Keys.TASKS, tag)
  return tonumber(head and Tasks.put_of(head) or now)
end

-- Returns the place of a raised lane. It is before the places of all others, and not above -1.
local function raised_place(seq)
  return seq - Lanes.AFTER_ALL
end

-- Returns the place of a lane if it is raised for the task with this sequence number, otherwise nil.
function Aging.raised_at(ctx, order, lane, seq)
  if not Aging.is_on(ctx) then return nil end
  local place = raised_place(seq)
  return tonumber(redis.call("ZSCORE", ctx.prefix .. order, lane) or 0) == place and place or nil
end

-- Returns the place of a lane whose first task has this sequence number. Only the task is raised that was the first
-- then. If it has left, the next claim looks whether another one has waited long.
function Aging.place_of(ctx, queue, key, lane, order, seq)
  local place = tonumber(redis.call("ZSCORE", ctx.prefix .. order, lane) or 0)
  if place == raised_place(seq) then return place end
  if place < 0 then redis.call("ZADD", ctx.prefix .. Keys.AGES .. queue, LEAST, string.sub(lane, 1, 1) .. " " .. key) end
  return Lanes.order_of(lane, seq)
end

-- Notes since when the tasks of a tenant wait, because the first claim has requested that.
function Aging.note_tenant(ctx, queue, key, now)
  if not Aging.is_on(ctx) then return end
  local lanes = Lanes.all_of(ctx, key, queue, LANES_AT_MOST)
  for index = 1, #lanes do
    local tag = Lanes.first_of(ctx, queue, key, lanes[index])
    -- A task that came after the first request may be noted before those that waited then.
    if tag then note_since(ctx, queue, key, string.sub(lanes[index], 1, 1), put_of(ctx, tag, now), "LT") end
  end
end

-- Raises the first lane of a rank in each order of a tenant, if its first task has waited long. Returns the time for
-- `ages:QUEUE`, or nil if no lane of the rank is left that is not raised.
local function raise_lanes(ctx, queue, key, rank, now)
  local before, orders, since = now - tonumber(ctx.ranked), {Lanes.order_name(key, nil, queue)}, nil
  local groups = Lanes.groups_of(ctx, queue, key, ORDERS_AT_MOST - 2)
  for index = 1, #groups do orders[#orders + 1] = Lanes.order_name(key, groups[index], queue) end
  for index = 1, #orders do
    local first = (9 - rank) * Lanes.AFTER_ALL
    local lane = redis.call("ZRANGEBYSCORE", ctx.prefix .. orders[index], first, "(" .. Rates.int_text(first + Lanes.AFTER_ALL),
      "LIMIT", 0, 1)[1]
    if lane then
      local tag, seq = Lanes.first_of(ctx, queue, key, lane)
      local put = put_of(ctx, tag, now)
      if put <= before then
        redis.call("ZADD", ctx.prefix .. orders[index], raised_place(seq), lane)
        put = now
      end
      since = math.min(since or put, put)
    end
  end
  -- The tenant may have more groups. Then its tasks there are looked at as soon as it waits in fewer.
  return since or #orders == ORDERS_AT_MOST and now or nil
end

-- Raises the lanes of a queue whose time has come, those of at most `most` ranks of tenants. Returns whether there may
-- be more.
function Aging.raise(ctx, queue, now, most)
  local ages = ctx.prefix .. Keys.AGES .. queue
  local due = redis.call("ZRANGEBYSCORE", ages, LEAST, now - tonumber(ctx.ranked), "LIMIT", 0, most)
  for index = 1, #due do
    local rank, key = string.match(due[index], "^(%d) (.*)$")
    local since = raise_lanes(ctx, queue, key, tonumber(rank), now)
    if since then
      redis.call("ZADD", ages, since, due[index])
      Priorities.rank_again(ctx, queue, key)
    else
      redis.call("ZREM", ages, due[index])
    end
  end
  return #due == most
end
