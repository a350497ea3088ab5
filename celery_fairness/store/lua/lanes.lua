--[[
  lanes: the waiting tasks of one queue, one tenant, one rank, one set of limits and one task name, in the order
  of their sequence numbers.

  This module also counts them: `waiting` counts by queue, and `tenant_state:KEY` by tenant and queue.

  A lane is named `CLASS NAME`. Its class is `RANK`, or `RANK,LIMITS` if its tasks have limits beside the tier's. A
  limit that rejects a lane rejects all lanes of its class. LIMITS has "#" in the place of each amount, because each task
  may take another one. The first task of the lane has the amounts by which claims check the lane.

  A lane stands in `ready:KEY QUEUE`, or in `blocked_lanes:KEY GROUP QUEUE` if its class is blocked. The order is by rank, then
  by the sequence number of the first task at the last note. So the tasks of one rank go in the order of their
  numbers, whatever their names.
]]

function Lanes.lane_of(task)
  if task.limits == "" then return task.rank .. " " .. task.name end
  return task.rank .. "," .. Numbers.without_amounts(task.limits) .. " " .. task.name
end

function Lanes.class_of(lane)
  return string.match(lane, "^%S+")
end

-- Returns the limits of a lane, "" if it has none.
function Lanes.limits_of(lane)
  return string.match(lane, "^%d,?(%S*)")
end

function Lanes.name_of(lane)
  return string.match(lane, " (.*)$")
end

function Lanes.tags_name(key, lane, queue)
  return Keys.LANE .. key .. " " .. lane .. " " .. queue
end

function Lanes.names_name(key, class, queue)
  return Keys.NAMES .. key .. " " .. class .. " " .. queue
end

function Lanes.order_name(key, group, queue)
  if group then return Keys.BLOCKED_LANES .. key .. " " .. group .. " " .. queue end
  return Keys.READY .. key .. " " .. queue
end

-- Returns whether `found` goes before the member that stands at `start`. `rank` is that member's rank, if the
-- highest rank goes first. If both are equal, `found` goes first, because a blocked task was met before.
function Lanes.goes_first(found, rank, start)
  if rank and found.rank ~= rank then return found.rank > rank end
  return found.start <= start
end

-- This number is greater than any sequence number. A double holds `(9 - rank) * AFTER_ALL + seq` exactly.
Lanes.AFTER_ALL = 2 ^ 49

function Lanes.order_of(lane, seq)
  return (9 - tonumber(string.sub(lane, 1, 1))) * Lanes.AFTER_ALL + seq
end

Lanes.HIGHEST = "9"

-- Returns the rank by which a lane stands in an order. It is the highest if the lane is raised (aging.lua).
function Lanes.rank_in(ctx, order, lane)
  local place = Aging.is_on(ctx) and redis.call("ZSCORE", ctx.prefix .. order, lane)
  return place and tonumber(place) < 0 and Lanes.HIGHEST or string.sub(lane, 1, 1)
end

-- Returns the tag of the first task of a lane and its sequence number.
function Lanes.first_of(ctx, queue, key, lane)
  local first = redis.call("ZRANGE", ctx.prefix .. Lanes.tags_name(key, lane, queue), 0, 0, "WITHSCORES")
  return first[1], tonumber(first[2])
end

-- Returns the limits of a lane as its first task has them, with its amounts.
function Lanes.first_limits(ctx, queue, key, lane)
  local limits = Lanes.limits_of(lane)
  if not string.find(limits, "#", 1, true) then return limits end
  local tag = Lanes.first_of(ctx, queue, key, lane)
  local task = tag and Tasks.read(ctx, tag)
  return task and task.limits or limits
end

-- Returns the first lane of a tenant that is ready, or that is blocked in a group.
function Lanes.first_lane(ctx, queue, key, group)
  return redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, group, queue), 0, 0)[1]
end

function Lanes.length_of(ctx, queue, key, lane)
  return redis.call("ZCARD", ctx.prefix .. Lanes.tags_name(key, lane, queue))
end

-- Notes the place of a lane by the task that is first in it now. An empty lane is removed. Returns whether it is.
function Lanes.note_first(ctx, queue, key, lane, order)
  local _, seq = Lanes.first_of(ctx, queue, key, lane)
  if seq then
    local place = Aging.is_on(ctx) and Aging.place_of(ctx, queue, key, lane, order, seq)
    redis.call("ZADD", ctx.prefix .. order, place or Lanes.order_of(lane, seq), lane)
  else
    redis.call("ZREM", ctx.prefix .. order, lane)
  end
  return not seq
end

-- The only lane of an order may stand at an older place than that of its first task (pop). To note it at each start costs
-- 7.7 % of a claim of four. Notes its place, because other lanes join it. `joined` is a lane that has joined it already,
-- or nil.
function Lanes.note_alone(ctx, queue, key, order, joined)
  local first, second, third = unpack(redis.call("ZRANGE", ctx.prefix .. order, 0, 2))
  if first == joined then
    first, second = second, third
  elseif second == joined then
    second = third
  end
  if first and not second then Lanes.note_first(ctx, queue, key, first, order) end
end

--[[
  groups: the group in which the lanes of a blocked class wait.
]]

-- Returns the group of a class that waits alone.
function Lanes.own_group(key, class)
  return key .. " " .. Limits.shape_of(class)
end

-- Returns the shared limits of a class, without regard to their numbers. They name the group in which it waits.
function Lanes.shared_of(class)
  local specs, shared = Limits.shape_of(Lanes.limits_of(class)), {}
  for spec in string.gmatch(specs, "[^,]+") do
    if string.sub(spec, -1) ~= "p" then shared[#shared + 1] = spec end
  end
  return table.concat(shared, ",")
end

-- Returns the group in which a lane or a class waits, or nil if it is ready. A lane without limits is never blocked.
function Lanes.group_of(ctx, queue, key, lane)
  local class = Lanes.class_of(lane)
  local alone = #class > 1 and redis.call("ZSCORE", ctx.prefix .. Keys.BLOCKED_CLASSES .. key .. " " .. queue, class)
  if not alone then return nil end
  return alone == "1" and Lanes.own_group(key, class) or Lanes.shared_of(class)
end

-- Returns the groups of the blocked classes of a tenant up to the index `last`, each once.
function Lanes.groups_of(ctx, queue, key, last)
  local classes = redis.call("ZRANGE", ctx.prefix .. Keys.BLOCKED_CLASSES .. key .. " " .. queue, 0, last)
  local groups, seen = {}, {}
  for index = 1, #classes do
    local group = Lanes.group_of(ctx, queue, key, classes[index])
    if not seen[group] then groups[#groups + 1], seen[group] = group, true end
  end
  return groups
end

-- Returns the lanes of a tenant in a queue: the ready ones, and those of each blocked class. `most` is how many it
-- reads of each order.
function Lanes.all_of(ctx, key, queue, most)
  local lanes = redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, nil, queue), 0, most - 1)
  local groups = Lanes.groups_of(ctx, queue, key, most - 1)
  for index = 1, #groups do
    if #lanes >= most then break end
    local some = redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, groups[index], queue), 0, most - 1)
    for place = 1, #some do lanes[#lanes + 1] = some[place] end
  end
  return lanes
end

--[[
  waiting: a task begins to wait, and the counts change.
]]

-- The tenant's state has the tier of the last put that carried one. If a tenant was found at its limit by another
-- tier, it is checked again.
function Lanes.note_tier(ctx, queue, task, is_put, tier, closed)
  if tier and (not is_put or task.tier == tier or task.tier == "") then return end
  redis.call("HSET", ctx.prefix .. Keys.TENANT_STATE .. task.key, "tier", task.tier, "tenant", task.tenant)
  if closed then
    redis.call("ZADD", ctx.prefix .. Keys.AT_LIMIT, 0, task.key)
    redis.call("HDEL", ctx.prefix .. Keys.CLOCK, "checked")
    Active.wake_worker(ctx, queue)
  end
end

-- A task begins to wait in a lane (by 1), or leaves it (by -1). Accounts and `waiting` count what waits of a tenant
-- and of a queue. So the keys of these two are not counted here.
function Lanes.count_limits(ctx, queue, lane, by)
  local limits = Lanes.limits_of(lane)
  if limits == "" then return end
  for key in string.gmatch(Tasks.keys_of("", limits), "[^,]+") do
    if string.sub(key, 1, 7) ~= "tenant:" and key ~= "queue:" .. queue then Limits.count_waiting(ctx, key, by) end
  end
end

-- A task begins to wait in its lane, at the place of its sequence number. If `is_put`, it waits for the first time.
-- If it did not wait before, `since` is the server time from which it does.
function Lanes.enqueue(ctx, queue, task, is_put, since)
  local key, lane = task.key, Lanes.lane_of(task)
  local tenant_state = ctx.prefix .. Keys.TENANT_STATE .. key
  local tier, closed, waiting = unpack(redis.call("HMGET", tenant_state, "tier", "at_limit", "q:" .. queue))
  if since and (task.put or "") == "" then task.put = string.format(waiting and "%d+" or "%d", since) end
  task.queue = queue
  Tasks.write(ctx, task)
  redis.call("ZADD", ctx.prefix .. Lanes.tags_name(key, lane, queue), task.seq, task.tag)
  Aging.note_waiting(ctx, queue, key, task.rank, string.match(task.put or "", "^%d+"))
  local group = Lanes.group_of(ctx, queue, key, lane)
  local order = Lanes.order_name(key, group, queue)
  local is_first = redis.call("ZADD", ctx.prefix .. order, "LT", "CH", Lanes.order_of(lane, task.seq), lane) == 1
  if is_first and task.limits ~= "" then
    redis.call("SADD", ctx.prefix .. Lanes.names_name(key, Lanes.class_of(lane), queue), task.name)
  end
  if is_first and waiting then Lanes.note_alone(ctx, queue, key, order, lane) end
  if task.limits ~= "" then Lanes.count_limits(ctx, queue, lane, 1) end
  redis.call("HINCRBY", ctx.prefix .. Keys.WAITING, queue, 1)
  if not (tier or waiting) then
    -- The tenant's state is new.
    redis.call("HSET", tenant_state, "tier", task.tier, "tenant", task.tenant, "q:" .. queue, 1)
    return Active.enter(ctx, queue, key)
  end
  Lanes.note_tier(ctx, queue, task, is_put, tier, closed)
  if redis.call("HINCRBY", tenant_state, "q:" .. queue, 1) == 1 then return Active.enter(ctx, queue, key) end
  Active.note_place(ctx, queue, key)
  if group then
    -- The limit at which the lane waits may be open. A claim that looked at it may have left tasks there.
    local name = redis.call("HGET", ctx.prefix .. Keys.GROUPS .. queue, group)
    local opened = name and redis.call("ZSCORE", ctx.prefix .. Keys.AVAILABLE .. queue, name)
    if opened and tonumber(opened) >= 0 then Active.wake_worker(ctx, queue) end
  elseif closed == Lending.MARK then
    Active.wake_worker(ctx, queue)
  elseif not closed then
    if is_first then Active.unblock(ctx, queue, key) end
    -- The last wake-up may have gone to a worker that died.
    Active.wake_worker(ctx, queue)
  end
end

--[[
  taking: tasks leave their lanes.
]]

-- The group loses the tenant, if the tenant has nothing more in it.
function Lanes.left_group(ctx, queue, key, group)
  if group and redis.call("EXISTS", ctx.prefix .. Lanes.order_name(key, group, queue)) == 0 then
    Blocked.leave_group(ctx, queue, group, key)
  end
end

-- If nothing of a tenant is ready, the tenant is active no more.
function Lanes.leave_active(ctx, queue, key)
  if redis.call("EXISTS", ctx.prefix .. Keys.READY .. key .. " " .. queue) == 0 then
    local active_key = ctx.prefix .. Keys.ACTIVE .. queue
    local start = redis.call("ZSCORE", active_key, key)
    if start then
      redis.call("ZREM", active_key, key)
      redis.call("ZADD", ctx.prefix .. Keys.BLOCKED .. queue, start, key)
    end
  end
  Active.note_place(ctx, queue, key)
end

-- Forgets an empty lane, and that its class is blocked if no lane of the class is left.
function Lanes.forget_lane(ctx, queue, key, lane)
  local class = Lanes.class_of(lane)
  if #class == 1 then return end
  local names = ctx.prefix .. Lanes.names_name(key, class, queue)
  redis.call("SREM", names, Lanes.name_of(lane))
  if redis.call("EXISTS", names) == 0 then
    redis.call("ZREM", ctx.prefix .. Keys.BLOCKED_CLASSES .. key .. " " .. queue, class)
  end
end

-- Removes the first task of a lane. Returns its tag, or nil if the lane is lost. Also returns whether nothing is left in
-- the order in which the lane stood. `turn` has these fields:
-- - the queue, the key of the tenant, the lane, and its group if it is blocked
-- - others: whether the order has other lanes, nil if the caller has not read it. To read it again costs 2.0 % of a claim
--   of four
function Lanes.pop(ctx, turn)
  local queue, key, lane, group, others = turn.queue, turn.key, turn.lane, turn.group, turn.others
  local order = Lanes.order_name(key, group, queue)
  if others == nil then others = redis.call("ZRANGE", ctx.prefix .. order, 0, 1)[2] ~= nil end
  local name = ctx.prefix .. Lanes.tags_name(key, lane, queue)
  local tag = redis.call("ZPOPMIN", name)[1]
  local is_gone
  if others or Aging.is_on(ctx) then
    is_gone = Lanes.note_first(ctx, queue, key, lane, order)
  else
    is_gone = redis.call("EXISTS", name) == 0
    if is_gone then redis.call("ZREM", ctx.prefix .. order, lane) end
  end
  if not is_gone then return tag, false end
  Lanes.forget_lane(ctx, queue, key, lane)
  if not others then Lanes.left_group(ctx, queue, key, group) end
  return tag, not others
end

-- A task has left its lane. `turn` has the queue, the key and the lane. If the tenant was charged for the task, it also
-- has `waiting`, how many of its tasks waited in the queue, and `finish`, as for leave. Without `waiting` a claim of four
-- costs 2.3 % more, and without `finish` 7.7 %. Returns how many tasks of the tenant are left in the queue.
function Lanes.task_left(ctx, turn)
  local queue, key, finish = turn.queue, turn.key, turn.finish
  Lanes.count_limits(ctx, queue, turn.lane, -1)
  local tenant_state = ctx.prefix .. Keys.TENANT_STATE .. key
  local of_tenant = finish and turn.waiting == 1 and 0 or redis.call("HINCRBY", tenant_state, "q:" .. queue, -1)
  local of_queue = redis.call("HINCRBY", ctx.prefix .. Keys.WAITING, queue, -1)
  if of_tenant == 0 then
    -- The state of a tenant with this queue alone has three fields: tier, tenant and the count of the queue. A fourth or
    -- fifth field may be `at_limit`, `mean` or the count of another queue.
    local fields, closed, mean = redis.call("HLEN", tenant_state), nil, nil
    if fields == 4 or fields == 5 then
      closed, mean = unpack(redis.call("HMGET", tenant_state, "at_limit", "mean"))
    end
    if fields == 3 + (closed and 1 or 0) + (mean and 1 or 0) then
      redis.call("DEL", tenant_state)
      if closed then redis.call("ZREM", ctx.prefix .. Keys.AT_LIMIT, key) end
    else
      redis.call("HDEL", tenant_state, "q:" .. queue)
    end
    Active.leave(ctx, queue, key, finish)
  end
  if of_queue == 0 then
    redis.call("HDEL", ctx.prefix .. Keys.WAITING, queue)
    Active.forget_queue(ctx, queue)
  end
  return of_tenant
end

-- Removes a task from its lane, from any place in it. Returns whether it waited there.
function Lanes.remove(ctx, task)
  local queue, key, lane = task.queue, task.key, Lanes.lane_of(task)
  if redis.call("ZREM", ctx.prefix .. Lanes.tags_name(key, lane, queue), task.tag) == 0 then return false end
  local group = Lanes.group_of(ctx, queue, key, lane)
  local is_gone = Lanes.note_first(ctx, queue, key, lane, Lanes.order_name(key, group, queue))
  if is_gone then Lanes.forget_lane(ctx, queue, key, lane) end
  Lanes.left_group(ctx, queue, key, group)
  Lanes.task_left(ctx, {queue = queue, key = key, lane = lane})
  Lanes.leave_active(ctx, queue, key)
  return true
end

-- Removes a task from its queue, wherever it waits there. Returns false if it does not wait, otherwise true. If the
-- task waited for its time, it returns that time.
function Lanes.remove_waiting(ctx, task)
  local due = Schedule.remove(ctx, task)
  if not due then return Lanes.remove(ctx, task) end
  Queues.forget_empty(ctx, task.queue)
  return due
end

-- Takes the first task of any tenant out of the lanes of a queue. Returns its tag. Returns nil if no task waits there, and
-- false if the task or the order of the tenant's lanes is lost. Then the caller goes on.
function Lanes.pop_any(ctx, queue)
  local key = redis.call("ZRANGE", ctx.prefix .. Keys.ACTIVE .. queue, 0, 0)[1]
    or redis.call("ZRANGE", ctx.prefix .. Keys.BLOCKED .. queue, 0, 0)[1]
  if not key then return nil end
  local group
  local lane = Lanes.first_lane(ctx, queue, key)
  if not lane then
    -- Nothing of this tenant is ready, so the first lane of a blocked class is next.
    group = Lanes.groups_of(ctx, queue, key, 0)[1]
    lane = Lanes.first_lane(ctx, queue, key, group)
  end
  if not lane then
    Stats.count_lost(ctx)
    redis.call("ZREM", ctx.prefix .. Keys.ACTIVE .. queue, key)
    redis.call("ZREM", ctx.prefix .. Keys.BLOCKED .. queue, key)
    Active.note_place(ctx, queue, key)
    return false
  end
  local turn = {queue = queue, key = key, lane = lane, group = group}
  local tag, is_last = Lanes.pop(ctx, turn)
  Lanes.task_left(ctx, turn)
  if is_last or ctx.ranked then Lanes.leave_active(ctx, queue, key) end
  return tag or false
end

--[[
  forget_waiting: delete a bounded part of the waiting tasks of a queue. Running tasks stay as they are.

  Returns how many tasks were deleted. If they are fewer than Lanes.PURGED_AT_MOST, no task is left in its place.
]]

Lanes.PURGED_AT_MOST = 100

function Lanes.forget_task(ctx, queue, tag)
  local task = Tasks.read(ctx, tag)
  if task then
    Tasks.delete(ctx, task.tag, task.id)
    redis.call("ZREM", ctx.prefix .. Keys.SCHEDULED_OF .. task.key, tag)
  end
  redis.call("ZREM", ctx.prefix .. Keys.EXPIRES .. queue, tag)
end

function Lanes.forget_waiting(ctx, queue)
  local later = ctx.prefix .. Keys.SCHEDULED .. queue
  local due = redis.call("ZRANGE", later, 0, Lanes.PURGED_AT_MOST - 1)
  for index = 1, #due do
    redis.call("ZREM", later, due[index])
    Lanes.forget_task(ctx, queue, Schedule.tag_of(due[index]))
  end
  if #due > 0 then Queues.forget_empty(ctx, queue) end
  local gone = #due
  while gone < Lanes.PURGED_AT_MOST do
    local tag = Lanes.pop_any(ctx, queue)
    if tag == nil then break end
    if tag then Lanes.forget_task(ctx, queue, tag) end
    gone = gone + 1
  end
  if gone > 0 then Events.write_event(ctx, "fairness.purged", "queue", queue, "tasks", gone) end
  if gone < Lanes.PURGED_AT_MOST then
    -- A task that waits for its time may have pushed this wake-up. The queue's own was deleted when it became empty.
    redis.call("DEL", ctx.prefix .. Keys.WAKEUP .. queue)
  end
  return gone
end

-- A call reads at most this many lanes. Only a tenant with as many names and limits has more.
local LANES_AT_MOST = 1024

-- Returns the first ready lane of which this process takes tasks, and whether there are other lanes. It returns nil
-- if there is none, or if no lane is left.
function Lanes.first_taken(ctx, queue, key, skips)
  local lanes = redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, nil, queue), 0, LANES_AT_MOST - 1)
  for index = 1, #lanes do
    local lane = lanes[index]
    if skips.is_local and Limits.worker_is_full(ctx, Lanes.limits_of(lane), skips) then
      if skips.lanes == 0 then return nil end
      skips.lanes = skips.lanes - 1
    elseif not skips.never[Lanes.name_of(lane)] then
      return lane, #lanes > 1
    end
  end
end
