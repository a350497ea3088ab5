--[[
  taking: tasks leave their lanes.
]]
--- @include "lanes"

-- A tenant may have nothing more in a group.
local function left_group(prefix, queue, key, group)
  if group and redis.call("EXISTS", prefix .. order_name(key, group, queue)) == 0 then
    limited().leave_group(prefix, queue, group, key)
  end
end

-- A tenant of whom nothing is ready is in no ring.
local function leave_ring(prefix, queue, key)
  if redis.call("EXISTS", prefix .. "ready:" .. key .. " " .. queue) == 0 then
    local ring = prefix .. "ring:" .. queue
    local start = redis.call("ZSCORE", ring, key)
    if start then
      redis.call("ZREM", ring, key)
      redis.call("ZADD", prefix .. "full:" .. queue, start, key)
    end
  end
  if ranked then ranks().rank_again(prefix, queue, key) end
end

-- A part of a lane may have no task any more, and the lane none.
local function forget_part(prefix, queue, key, part)
  local lane, kind = read_part(part)
  if #lane == 1 then return end
  local kinds = prefix .. "kinds:" .. key .. " " .. lane .. " " .. queue
  if kind and redis.call("EXISTS", prefix .. back_name(key, lane, kind, queue)) == 0 then
    redis.call("SREM", kinds, kind)
  end
  if redis.call("EXISTS", kinds, prefix .. list_name(key, lane, queue)) == 0 then
    redis.call("ZREM", prefix .. "parked:" .. key .. " " .. queue, lane)
  end
end

-- The record of the first task of a part, which is in no lane any more, nothing where somebody has
-- deleted it; whether nothing is left in the order that it stood in; and whether the part is gone.
-- `others` says whether there are other parts in it, nil where the caller does not know; `waiting` how
-- many tasks of the tenant wait in the queue, nil likewise.
local function pop_part(prefix, queue, key, part, group, others, waiting)
  local order = order_name(key, group, queue)
  if others == nil then others = redis.call("ZRANGE", prefix .. order, 0, 1)[2] ~= nil end
  local lane, kind = read_part(part)
  local list = kind and back_name(key, lane, kind, queue) or list_name(key, lane, queue)
  local record
  if kind then
    local tag = redis.call("ZPOPMIN", prefix .. list)[1]
    -- Else somebody has deleted the list.
    if tag then
      record = redis.call("HGET", prefix .. "returned", tag)
      redis.call("HDEL", prefix .. "returned", tag)
    end
  else
    record = redis.call("LPOP", prefix .. list)
  end
  local is_last, is_gone = false, false
  if waiting == 1 or redis.call("EXISTS", prefix .. list) == 0 then
    redis.call("ZREM", prefix .. order, part)
    forget_part(prefix, queue, key, part)
    is_last, is_gone = not others, true
    if is_last then left_group(prefix, queue, key, group) end
  elseif others then
    note_first(prefix, queue, key, part, order)
  end
  return record, is_last, is_gone
end

-- A task has left its lane; `finish` and `virtual` where the tenant was charged for it, as for leave,
-- `waiting` as for pop_part. Returns how many the tenant has left in the queue.
local function task_left(prefix, queue, key, finish, waiting, virtual)
  local account = prefix .. "account:" .. key
  local of_tenant = waiting == 1 and 0 or redis.call("HINCRBY", account, "q:" .. queue, -1)
  local of_queue = redis.call("HINCRBY", prefix .. "waiting", queue, -1)
  if of_tenant == 0 then
    -- Tier, tenant, and what is said of this queue; one more of another, its mean, that it is closed.
    local fields, closed, mean = redis.call("HLEN", account), nil, nil
    if fields == 4 or fields == 5 then
      closed, mean = unpack(redis.call("HMGET", account, "closed", "mean"))
    end
    if fields == 3 + (closed and 1 or 0) + (mean and 1 or 0) then
      redis.call("DEL", account)
      if closed then redis.call("ZREM", prefix .. "closed", key) end
    else
      redis.call("HDEL", account, "q:" .. queue)
    end
    leave(prefix, queue, key, finish, virtual)
  end
  if of_queue == 0 then
    redis.call("HDEL", prefix .. "waiting", queue)
    forget_ring(prefix, queue)
  end
  return of_tenant
end
