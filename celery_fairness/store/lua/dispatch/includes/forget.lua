--[[
  forget_waiting: forget a bounded part of what waits in a queue; what runs is not touched.

  Returns how many were forgotten; nothing is left where they are fewer than FORGET_AT_MOST.
]]
--- @include "events"
--- @include "later"
--- @include "groups"
--- @include "taking"

local FORGET_AT_MOST = 100

local function forget_record(prefix, queue, record)
  local tag = string.match(record, "^%d+ (%S+)")
  redis.call("SREM", prefix .. "known", tag)
  redis.call("ZREM", prefix .. "expires:" .. queue, tag)
end

local function forget_waiting(prefix, queue)
  local later = prefix .. "later:" .. queue
  local due = redis.call("ZRANGEBYSCORE", later, "-inf", "+inf", "LIMIT", 0, FORGET_AT_MOST)
  for index = 1, #due do
    redis.call("ZREM", later, due[index])
    forget_record(prefix, queue, string.sub(due[index], ORDER_LENGTH + 1))
  end
  local gone = #due
  for _ = gone + 1, FORGET_AT_MOST do
    local key = redis.call("ZRANGE", prefix .. "ring:" .. queue, 0, 0)[1]
      or redis.call("ZRANGE", prefix .. "full:" .. queue, 0, 0)[1]
    if not key then break end
    local group
    local part = redis.call("ZRANGE", prefix .. order_name(key, nil, queue), 0, 0)[1]
    if not part then
      -- Nothing of it is ready: of its parked lanes the first.
      local lane = redis.call("ZRANGE", prefix .. "parked:" .. key .. " " .. queue, 0, 0)[1]
      group = group_of(prefix, queue, key, lane)
      part = redis.call("ZRANGE", prefix .. order_name(key, group, queue), 0, 0)[1]
    end
    local record, is_last = pop_part(prefix, queue, key, part, group)
    forget_record(prefix, queue, record)
    task_left(prefix, queue, key)
    if is_last or ranked then leave_ring(prefix, queue, key) end
    gone = gone + 1
  end
  if gone > 0 then write_event(prefix, "fairness.purged", "queue", queue, "tasks", gone) end
  if gone < FORGET_AT_MOST then
    -- Of tasks that waited for their time; the ring's went with it.
    redis.call("DEL", prefix .. "bell:" .. queue)
  end
  return gone
end
