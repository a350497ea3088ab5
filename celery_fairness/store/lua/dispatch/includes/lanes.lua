--[[
  Lanes: the waiting tasks of one queue, one tenant and one rank, first in, first out; and what is
  counted of them: `waiting` by queue, `account:KEY` by tenant and queue.

  What was taken out and comes back stands in lanes of its own (`back`), one for each kind, by
  sequence number. It is served first, because whatever was taken out is older than all that is left.

  `ready:KEY QUEUE` orders a tenant's lanes, each named RANK or `RANKb KIND`: by rank, and what came
  back before the others, by the sequence number of its first task.
]]
--- @include "record"
--- @include "ring"

local function lane_name(key, rank, queue)
  return "lane:" .. key .. " " .. rank .. " " .. queue
end

local function back_name(key, rank, kind, queue)
  return "back:" .. key .. " " .. rank .. " " .. kind .. " " .. queue
end

-- More than there will be sequence numbers; with a rank before it, not more than a double holds.
local AFTER_ALL = 2 ^ 49

local function order_of(rank, seq)
  return string.format("%.0f", (9 - tonumber(rank)) * AFTER_ALL + seq)
end

-- The first task of a lane of what came back is another one, or there is none.
local function order_back(prefix, queue, key, rank, kind)
  local back = prefix .. back_name(key, rank, kind, queue)
  local ready = prefix .. "ready:" .. key .. " " .. queue
  local seq = redis.call("ZRANGE", back, 0, 0, "WITHSCORES")[2]
  if seq then
    redis.call("ZADD", ready, order_of(rank, tonumber(seq)), rank .. "b " .. kind)
  else
    redis.call("ZREM", ready, rank .. "b " .. kind)
  end
end

local function place_task(prefix, queue, task, message, is_back)
  local key, rank = task.key, task.rank
  local record = write_record(task, message)
  if is_back then
    redis.call("ZADD", prefix .. back_name(key, rank, task.kind, queue), task.seq, task.tag)
    redis.call("HSET", prefix .. "returned", task.tag, record)
    order_back(prefix, queue, key, rank, task.kind)
  elseif redis.call("RPUSH", prefix .. lane_name(key, rank, queue), record) == 1 then
    redis.call("ZADD", prefix .. "ready:" .. key .. " " .. queue,
      order_of(rank, AFTER_ALL - 1), rank)
  end
end

-- The tier beside the lanes is that of the last put which knew one. A tenant that was found at its
-- limit by another tier is judged anew.
local function note_tier(prefix, queue, task, is_put, tier, closed)
  if tier and (not is_put or task.tier == tier or task.tier == "") then return end
  redis.call("HSET", prefix .. "account:" .. task.key, "tier", task.tier, "tenant", task.tenant)
  if closed then
    redis.call("ZADD", prefix .. "closed", 0, task.key)
    ring_bell(prefix, queue)
  end
end

-- A task begins to wait: `is_put` for the first time, `is_back` in its place of before.
local function enqueue(prefix, queue, task, message, is_put, is_back)
  local account = prefix .. "account:" .. task.key
  local known = redis.call("HMGET", account, "tier", "closed")
  place_task(prefix, queue, task, message, is_back)
  note_tier(prefix, queue, task, is_put, known[1], known[2])
  redis.call("HINCRBY", prefix .. "waiting", queue, 1)
  if redis.call("HINCRBY", account, "q:" .. queue, 1) == 1 then
    enter(prefix, queue, task.key)
  elseif not known[2] then
    -- Its token may have gone to a worker that died.
    ring_bell(prefix, queue)
  end
end

-- A task has left its lane; `finish` where the tenant was charged for it.
-- Returns how many the tenant has left in the queue.
local function task_left(prefix, queue, key, finish)
  local account = prefix .. "account:" .. key
  local of_tenant = redis.call("HINCRBY", account, "q:" .. queue, -1)
  local of_queue = redis.call("HINCRBY", prefix .. "waiting", queue, -1)
  if of_tenant == 0 then
    redis.call("HDEL", account, "q:" .. queue)
    local closed = redis.call("HEXISTS", account, "closed")
    if redis.call("HLEN", account) == 2 + closed then
      redis.call("DEL", account)
      redis.call("ZREM", prefix .. "closed", key)
    end
    leave(prefix, queue, key, finish)
  end
  if of_queue == 0 then
    redis.call("HDEL", prefix .. "waiting", queue)
    forget_ring(prefix, queue)
  end
  return of_tenant
end

-- The record of the tenant's first task, or of the first of `lane`, which is in no lane any more.
local function pop_first(prefix, queue, key, lane)
  local ready = prefix .. "ready:" .. key .. " " .. queue
  lane = lane or redis.call("ZRANGE", ready, 0, 0)[1]
  local rank, kind = string.match(lane, "^(%d)b (.*)$")
  if not rank then
    local list = prefix .. lane_name(key, lane, queue)
    local record = redis.call("LPOP", list)
    if redis.call("EXISTS", list) == 0 then redis.call("ZREM", ready, lane) end
    return record
  end
  local tag = redis.call("ZPOPMIN", prefix .. back_name(key, rank, kind, queue))[1]
  local record = redis.call("HGET", prefix .. "returned", tag)
  redis.call("HDEL", prefix .. "returned", tag)
  order_back(prefix, queue, key, rank, kind)
  return record
end

-- Takes a task that came back out of its lane: returns whether it waited there.
local function withdraw(prefix, queue, key, rank, tag)
  local record = redis.call("HGET", prefix .. "returned", tag)
  if not record then return false end
  local kind = read_record(record).kind
  if redis.call("ZREM", prefix .. back_name(key, rank, kind, queue), tag) == 0 then return false end
  redis.call("HDEL", prefix .. "returned", tag)
  redis.call("SREM", prefix .. "known", tag)
  order_back(prefix, queue, key, rank, kind)
  task_left(prefix, queue, key)
  return true
end
