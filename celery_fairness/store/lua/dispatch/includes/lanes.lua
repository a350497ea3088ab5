--[[
  Lanes: the waiting tasks of one queue, one tenant and one rank, first in, first out; and what is
  counted of them: `waiting` by queue, `account:KEY` by tenant and queue.

  What was claimed and comes back stands in a lane of its own (`back`), by sequence number. It is
  served first, because whatever was claimed is older than all that never was.

  `ready:KEY QUEUE` orders a tenant's lanes: by rank, and what came back before the others.
]]
--- @include "record"
--- @include "ring"

local function lane_name(key, rank, queue)
  return "lane:" .. key .. " " .. rank .. " " .. queue
end

local function back_name(key, rank, queue)
  return "back:" .. key .. " " .. rank .. " " .. queue
end

local function place_task(prefix, queue, task, message, is_back)
  local key, rank = task.key, task.rank
  local record = write_record(task, message)
  local ready = prefix .. "ready:" .. key .. " " .. queue
  local order = 2 * (9 - tonumber(rank))
  if is_back then
    redis.call("ZADD", prefix .. back_name(key, rank, queue), task.seq, task.tag)
    redis.call("HSET", prefix .. "returned", task.tag, record)
    redis.call("ZADD", ready, order, rank .. "b")
  elseif redis.call("RPUSH", prefix .. lane_name(key, rank, queue), record) == 1 then
    redis.call("ZADD", ready, order + 1, rank)
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

local function lane_ended(prefix, queue, key, lane, member)
  if redis.call("EXISTS", lane) == 0 then
    redis.call("ZREM", prefix .. "ready:" .. key .. " " .. queue, member)
  end
end

-- The record of the tenant's first task, which is in no lane any more.
local function pop_first(prefix, queue, key)
  local member = redis.call("ZRANGE", prefix .. "ready:" .. key .. " " .. queue, 0, 0)[1]
  local rank = string.sub(member, 1, 1)
  local lane, record
  if member == rank then
    lane = prefix .. lane_name(key, rank, queue)
    record = redis.call("LPOP", lane)
  else
    lane = prefix .. back_name(key, rank, queue)
    local tag = redis.call("ZPOPMIN", lane)[1]
    record = redis.call("HGET", prefix .. "returned", tag)
    redis.call("HDEL", prefix .. "returned", tag)
  end
  lane_ended(prefix, queue, key, lane, member)
  return record
end

-- Takes a task that came back out of its lane: returns whether it waited there.
local function withdraw(prefix, queue, key, rank, tag)
  local back = prefix .. back_name(key, rank, queue)
  if redis.call("ZREM", back, tag) == 0 then return false end
  redis.call("HDEL", prefix .. "returned", tag)
  redis.call("SREM", prefix .. "known", tag)
  lane_ended(prefix, queue, key, back, rank .. "b")
  task_left(prefix, queue, key)
  return true
end
