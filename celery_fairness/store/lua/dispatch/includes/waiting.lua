--[[
  waiting: a task begins to wait, and what is counted of it.
]]
--- @include "groups"

-- Places a task last in its lane. Returns whether the lane has something anew.
local function place_last(prefix, queue, task, message)
  local key, lane = task.key, lane_of(task)
  local length = redis.call("RPUSH", prefix .. list_name(key, lane, queue), write_record(task, message))
  if length > 1 then return false end
  note(prefix, order_name(key, group_of(prefix, queue, key, lane), queue), lane, task.seq)
  return true
end

-- Places a task that was taken out, or may end by itself, before its lane.
local function place_back(prefix, queue, task, message)
  local key, lane = task.key, lane_of(task)
  local order = order_name(key, group_of(prefix, queue, key, lane), queue)
  redis.call("ZADD", prefix .. back_name(key, lane, task.kind, queue), task.seq, task.tag)
  redis.call("HSET", prefix .. "returned", task.tag, write_record(task, message))
  if #lane > 1 then
    redis.call("SADD", prefix .. "kinds:" .. key .. " " .. lane .. " " .. queue, task.kind)
  end
  note_first(prefix, queue, key, lane .. "b " .. task.kind, order)
  note_first(prefix, queue, key, lane, order)
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

-- What waits at a limit may be open, and have been left by who looked.
local function joins_parked(prefix, queue, group)
  local name = redis.call("HGET", prefix .. "groups:" .. queue, group)
  local opened = name and redis.call("ZSCORE", prefix .. "candidates:" .. queue, name)
  -- Somebody may have deleted it.
  if opened and tonumber(opened) >= 0 then ring_bell(prefix, queue) end
end

-- A task will wait, from the server time `since` where it did not wait before. Returns what is known of
-- its tenant: tier, whether it is closed, and how many wait.
local function will_wait(prefix, queue, task, since)
  local known = redis.call("HMGET", prefix .. "account:" .. task.key, "tier", "closed", "q:" .. queue)
  if since and (task.put or "") == "" then
    task.put = string.format(known[3] and "@%.0f+" or "@%.0f", since)
  end
  return known
end

-- A task was placed that did not wait: `is_put` for the first time, `is_new` where it may be served
-- before what waits; `known` as it was then.
local function begin_waiting(prefix, queue, task, is_put, is_new, known)
  local account = prefix .. "account:" .. task.key
  note_tier(prefix, queue, task, is_put, known[1], known[2])
  redis.call("HINCRBY", prefix .. "waiting", queue, 1)
  if redis.call("HINCRBY", account, "q:" .. queue, 1) == 1 then
    enter(prefix, queue, task.key)
    return
  end
  if ranked then ranks().rank_again(prefix, queue, task.key) end
  local group = group_of(prefix, queue, task.key, lane_of(task))
  if group then
    joins_parked(prefix, queue, group)
  elseif not known[2] then
    if is_new then enter_again(prefix, queue, task.key) end
    -- Its token may have gone to a worker that died.
    ring_bell(prefix, queue)
  end
end

-- A task begins to wait, last in its lane.
local function enqueue(prefix, queue, task, message, is_put, since)
  local known = will_wait(prefix, queue, task, since)
  local is_new = place_last(prefix, queue, task, message)
  begin_waiting(prefix, queue, task, is_put, is_new, known)
end

-- A task begins to wait that may end there by itself: where it is found by its tag, in its place.
local function enqueue_expiring(prefix, queue, task, message, is_put, since)
  local known = will_wait(prefix, queue, task, since)
  place_back(prefix, queue, task, message)
  begin_waiting(prefix, queue, task, is_put, true, known)
end

-- A task waits again, in its place of before.
local function enqueue_back(prefix, queue, task, message)
  enqueue_expiring(prefix, queue, task, message, false)
end
