--[[
  Lanes: the waiting tasks of one queue, one tenant, one rank and one set of limits, first in, first out.

  This module also counts them: `waiting` counts by queue, and `account:KEY` by tenant and queue.

  A task that was taken out and comes back stands in a part of its own (`back`). Each kind has one such part,
  ordered by sequence number. These parts are served first, because a task that was taken out is older than all
  others.

  `ready:KEY QUEUE` orders the parts of a tenant's lanes that no limit keeps back. A part is named `LANE` or
  `LANEb KIND`, and a lane is `RANK` or `RANK,LIMITS`. The order is by rank, then by the sequence number of the
  first task at the last note.

  - `shelf:KEY GROUP QUEUE` holds the parts of a parked lane, in that order.
  - `parked:KEY QUEUE` holds for each parked lane whether it waits alone.
  - `kinds:KEY LANE QUEUE` holds the kinds that came back to a lane with limits.
]]

function Lanes.list_name(key, lane, queue)
  return "lane:" .. key .. " " .. lane .. " " .. queue
end

function Lanes.back_name(key, lane, kind, queue)
  return "back:" .. key .. " " .. lane .. " " .. kind .. " " .. queue
end

-- Returns the lane of a part and its kind. The kind is nil if the part has none.
function Lanes.read_part(part)
  if #part == 1 then return part end
  local lane, kind = string.match(part, "^(%S+)b (.*)$")
  return lane or part, kind
end

function Lanes.order_name(key, group, queue)
  if group then return "shelf:" .. key .. " " .. group .. " " .. queue end
  return "ready:" .. key .. " " .. queue
end

-- Returns whether `found` goes before the member that stands at `start`. `rank` is that member's rank, if the
-- highest rank goes first. If both are equal, `found` goes first, because a parked task was met before.
function Lanes.goes_first(found, rank, start)
  local its = string.sub(found.part, 1, 1)
  if rank and its ~= rank then return its > rank end
  return found.start <= start
end


-- This number is greater than any sequence number. A double holds `(9 - rank) * AFTER_ALL + seq` exactly.
Lanes.AFTER_ALL = 2 ^ 49

function Lanes.note(ctx, order, part, seq)
  local rank = tonumber(string.sub(part, 1, 1))
  redis.call("ZADD", ctx.prefix .. order, string.format("%.0f", (9 - rank) * Lanes.AFTER_ALL + seq), part)
end

-- Notes the place of a part by the task that is first in it now. An empty part is removed.
function Lanes.note_first(ctx, queue, key, part, order)
  local lane, kind = Lanes.read_part(part)
  local seq
  if kind then
    seq = redis.call("ZRANGE", ctx.prefix .. Lanes.back_name(key, lane, kind, queue), 0, 0, "WITHSCORES")[2]
  else
    local head = redis.call("LINDEX", ctx.prefix .. Lanes.list_name(key, lane, queue), 0)
    seq = head and string.match(head, "^%d+")
  end
  if seq then
    Lanes.note(ctx, order, part, tonumber(seq))
  else
    redis.call("ZREM", ctx.prefix .. order, part)
  end
end

--[[
  groups: the lane in which a task waits, and the group in which a lane waits.
]]

function Lanes.lane_of(task)
  return task.limits == "" and task.rank or task.rank .. "," .. task.limits
end

-- Returns the shared limits of a lane, without regard to their numbers. They name the group in which the lane
-- waits.
function Lanes.shared_of(lane)
  local words, shared = string.sub(Limits.shape_of(lane), 3), {}
  for word in string.gmatch(words, "[^,]+") do
    if string.sub(word, -1) ~= "p" then shared[#shared + 1] = word end
  end
  return table.concat(shared, ",")
end

-- Returns the group in which a lane waits, or nil if the lane is ready. A lane without limits is never parked.
function Lanes.group_of(ctx, queue, key, lane)
  if #lane == 1 then return nil end
  local alone = redis.call("ZSCORE", ctx.prefix .. "parked:" .. key .. " " .. queue, lane)
  if not alone then return nil end
  return alone == "1" and key .. " " .. Limits.shape_of(lane) or Lanes.shared_of(lane)
end

--[[
  waiting: a task begins to wait, and the counts change.
]]

-- Places a task last in its lane. Returns whether the lane was empty before.
function Lanes.place_last(ctx, queue, task, message)
  local key, lane = task.key, Lanes.lane_of(task)
  local length = redis.call("RPUSH", ctx.prefix .. Lanes.list_name(key, lane, queue), Tasks.write_record(task, message))
  if length > 1 then return false end
  Lanes.note(ctx, Lanes.order_name(key, Lanes.group_of(ctx, queue, key, lane), queue), lane, task.seq)
  return true
end

-- Places a task before its lane. The task was taken out before, or it may expire.
function Lanes.place_back(ctx, queue, task, message)
  local key, lane = task.key, Lanes.lane_of(task)
  local order = Lanes.order_name(key, Lanes.group_of(ctx, queue, key, lane), queue)
  redis.call("ZADD", ctx.prefix .. Lanes.back_name(key, lane, task.kind, queue), task.seq, task.tag)
  redis.call("HSET", ctx.prefix .. "returned", task.tag, Tasks.write_record(task, message))
  if #lane > 1 then
    redis.call("SADD", ctx.prefix .. "kinds:" .. key .. " " .. lane .. " " .. queue, task.kind)
  end
  Lanes.note_first(ctx, queue, key, lane .. "b " .. task.kind, order)
  Lanes.note_first(ctx, queue, key, lane, order)
end

-- The account has the tier of the last put that carried one. If a tenant was found at its limit by another
-- tier, it is judged anew.
function Lanes.note_tier(ctx, queue, task, is_put, tier, closed)
  if tier and (not is_put or task.tier == tier or task.tier == "") then return end
  redis.call("HSET", ctx.prefix .. "account:" .. task.key, "tier", task.tier, "tenant", task.tenant)
  if closed then
    redis.call("ZADD", ctx.prefix .. "closed", 0, task.key)
    Active.ring_bell(ctx, queue)
  end
end

-- The limit at which the lane waits may be open. A claim that looked at it may have left tasks there.
function Lanes.joins_parked(ctx, queue, group)
  local name = redis.call("HGET", ctx.prefix .. "groups:" .. queue, group)
  local opened = name and redis.call("ZSCORE", ctx.prefix .. "candidates:" .. queue, name)
  -- A person may have deleted the entry in `candidates`.
  if opened and tonumber(opened) >= 0 then Active.ring_bell(ctx, queue) end
end

-- A task will wait. If it did not wait before, `since` is the server time from which it does. Returns three
-- fields of its tenant: the tier, whether it is closed, and how many tasks wait.
function Lanes.will_wait(ctx, queue, task, since)
  local known = redis.call("HMGET", ctx.prefix .. "account:" .. task.key, "tier", "closed", "q:" .. queue)
  if since and (task.put or "") == "" then
    task.put = string.format(known[3] and "%d+" or "%d", since)
  end
  return known
end

-- A task was placed that did not wait before. If `is_put`, it was placed for the first time. If `is_new`, it
-- may be served before the tasks that wait. `known` is the result of will_wait before it was placed.
function Lanes.begin_waiting(ctx, queue, task, is_put, is_new, known)
  local account = ctx.prefix .. "account:" .. task.key
  Lanes.note_tier(ctx, queue, task, is_put, known[1], known[2])
  redis.call("HINCRBY", ctx.prefix .. "waiting", queue, 1)
  if redis.call("HINCRBY", account, "q:" .. queue, 1) == 1 then
    Active.enter(ctx, queue, task.key)
    return
  end
  if ctx.ranked then Priorities.rank_again(ctx, queue, task.key) end
  local group = Lanes.group_of(ctx, queue, task.key, Lanes.lane_of(task))
  if group then
    Lanes.joins_parked(ctx, queue, group)
  elseif not known[2] then
    if is_new then Active.enter_again(ctx, queue, task.key) end
    -- The last token of the bell may have gone to a worker that died.
    Active.ring_bell(ctx, queue)
  end
end

-- A task begins to wait, last in its lane.
function Lanes.enqueue(ctx, queue, task, message, is_put, since)
  local known = Lanes.will_wait(ctx, queue, task, since)
  local is_new = Lanes.place_last(ctx, queue, task, message)
  Lanes.begin_waiting(ctx, queue, task, is_put, is_new, known)
end

-- A task begins to wait that may expire. It stands in `back`, in its place, so that its tag finds it.
function Lanes.enqueue_expiring(ctx, queue, task, message, is_put, since)
  local known = Lanes.will_wait(ctx, queue, task, since)
  Lanes.place_back(ctx, queue, task, message)
  Lanes.begin_waiting(ctx, queue, task, is_put, true, known)
end

-- A task waits again, in its former place.
function Lanes.enqueue_back(ctx, queue, task, message)
  Lanes.enqueue_expiring(ctx, queue, task, message, false)
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

-- If nothing of a tenant is ready, the tenant leaves the ring.
function Lanes.leave_ring(ctx, queue, key)
  if redis.call("EXISTS", ctx.prefix .. "ready:" .. key .. " " .. queue) == 0 then
    local ring = ctx.prefix .. "ring:" .. queue
    local start = redis.call("ZSCORE", ring, key)
    if start then
      redis.call("ZREM", ring, key)
      redis.call("ZADD", ctx.prefix .. "full:" .. queue, start, key)
    end
  end
  if ctx.ranked then Priorities.rank_again(ctx, queue, key) end
end

-- Removes the kind of an empty part, and the mark as parked of an empty lane.
function Lanes.forget_part(ctx, queue, key, part)
  local lane, kind = Lanes.read_part(part)
  if #lane == 1 then return end
  local kinds = ctx.prefix .. "kinds:" .. key .. " " .. lane .. " " .. queue
  if kind and redis.call("EXISTS", ctx.prefix .. Lanes.back_name(key, lane, kind, queue)) == 0 then
    redis.call("SREM", kinds, kind)
  end
  if redis.call("EXISTS", kinds, ctx.prefix .. Lanes.list_name(key, lane, queue)) == 0 then
    redis.call("ZREM", ctx.prefix .. "parked:" .. key .. " " .. queue, lane)
  end
end

-- Removes the first task of a part from its lane. Returns three values:
-- - its record, or nothing if somebody has deleted it
-- - whether nothing is left in the order in which the part stood
-- - whether the part is gone
-- `others` is whether the order has other parts. `waiting` is how many tasks of the tenant wait in the queue.
-- Each of them is nil if the caller does not have it.
function Lanes.pop_part(ctx, queue, key, part, group, others, waiting)
  local order = Lanes.order_name(key, group, queue)
  if others == nil then others = redis.call("ZRANGE", ctx.prefix .. order, 0, 1)[2] ~= nil end
  local lane, kind = Lanes.read_part(part)
  local list = kind and Lanes.back_name(key, lane, kind, queue) or Lanes.list_name(key, lane, queue)
  local record
  if kind then
    local tag = redis.call("ZPOPMIN", ctx.prefix .. list)[1]
    -- If there is no tag, somebody has deleted the list.
    if tag then
      record = redis.call("HGET", ctx.prefix .. "returned", tag)
      redis.call("HDEL", ctx.prefix .. "returned", tag)
    end
  else
    record = redis.call("LPOP", ctx.prefix .. list)
  end
  local is_last, is_gone = false, false
  if waiting == 1 or redis.call("EXISTS", ctx.prefix .. list) == 0 then
    redis.call("ZREM", ctx.prefix .. order, part)
    Lanes.forget_part(ctx, queue, key, part)
    is_last, is_gone = not others, true
    if is_last then Lanes.left_group(ctx, queue, key, group) end
  elseif others then
    Lanes.note_first(ctx, queue, key, part, order)
  end
  return record, is_last, is_gone
end

-- A task has left its lane. If the tenant was charged for it, `finish` and `virtual` are as for leave.
-- `waiting` is as for pop_part. Returns how many tasks of the tenant are left in the queue.
function Lanes.task_left(ctx, queue, key, finish, waiting, virtual)
  local account = ctx.prefix .. "account:" .. key
  local of_tenant = waiting == 1 and 0 or redis.call("HINCRBY", account, "q:" .. queue, -1)
  local of_queue = redis.call("HINCRBY", ctx.prefix .. "waiting", queue, -1)
  if of_tenant == 0 then
    -- An account with this queue alone has three fields: tier, tenant and the count of the queue. A fourth or
    -- fifth field may be `closed`, `mean` or the count of another queue.
    local fields, closed, mean = redis.call("HLEN", account), nil, nil
    if fields == 4 or fields == 5 then
      closed, mean = unpack(redis.call("HMGET", account, "closed", "mean"))
    end
    if fields == 3 + (closed and 1 or 0) + (mean and 1 or 0) then
      redis.call("DEL", account)
      if closed then redis.call("ZREM", ctx.prefix .. "closed", key) end
    else
      redis.call("HDEL", account, "q:" .. queue)
    end
    Active.leave(ctx, queue, key, finish, virtual)
  end
  if of_queue == 0 then
    redis.call("HDEL", ctx.prefix .. "waiting", queue)
    Active.forget_ring(ctx, queue)
  end
  return of_tenant
end

--[[
  removing: a task leaves its lane from any place in it.
]]

-- A task was removed from a list of the lane. `kind` is that of a task that came back, otherwise nil.
function Lanes.removed(ctx, queue, key, lane, kind)
  local part = kind and lane .. "b " .. kind or lane
  local group = Lanes.group_of(ctx, queue, key, lane)
  Lanes.note_first(ctx, queue, key, part, Lanes.order_name(key, group, queue))
  Lanes.forget_part(ctx, queue, key, part)
  Lanes.left_group(ctx, queue, key, group)
  Lanes.task_left(ctx, queue, key)
  Lanes.leave_ring(ctx, queue, key)
end

-- Removes a task that came back, with this record, from its lane. Returns whether it waited there.
function Lanes.remove_back(ctx, queue, task)
  local lane = Lanes.lane_of(task)
  if redis.call("ZREM", ctx.prefix .. Lanes.back_name(task.key, lane, task.kind, queue), task.tag) == 0 then
    return false
  end
  redis.call("HDEL", ctx.prefix .. "returned", task.tag)
  Lanes.removed(ctx, queue, task.key, lane, task.kind)
  return true
end

-- Returns the end of a list from which a search finds a task sooner, 1 or -1. The list has the order of its
-- tasks. It returns nil if the task is not between the first and the last.
function Lanes.nearer_end(list, seq)
  local first = tonumber(string.match(redis.call("LINDEX", list, 0) or "", "^%d+"))
  local last = tonumber(string.match(redis.call("LINDEX", list, -1) or "", "^%d+"))
  if not first or seq < first or seq > last then return nil end
  return seq - first <= last - seq and 1 or -1
end

-- Removes a task with this record from a queue, wherever it waits there. Returns false or nil if it did not
-- wait there, otherwise true. If the task waited for its time, it returns that time.
function Lanes.remove_waiting(ctx, queue, task, record)
  local later, member = ctx.prefix .. "later:" .. queue, string.format("%016.0f ", task.seq) .. record
  local due = redis.call("ZSCORE", later, member)
  if due then
    redis.call("ZREM", later, member)
    return due
  end
  local lane = Lanes.lane_of(task)
  local list = ctx.prefix .. Lanes.list_name(task.key, lane, queue)
  local from = Lanes.nearer_end(list, task.seq)
  if from and redis.call("LREM", list, from, record) == 1 then
    Lanes.removed(ctx, queue, task.key, lane)
    return true
  end
  return redis.call("HGET", ctx.prefix .. "returned", task.tag) == record
    and Lanes.remove_back(ctx, queue, task)
end

--[[
  forget_waiting: delete a bounded part of the waiting tasks of a queue. Running tasks stay as they are.

  Returns how many tasks were deleted. If they are fewer than Lanes.PURGED_AT_MOST, nothing is left.
]]

Lanes.PURGED_AT_MOST = 100

function Lanes.forget_record(ctx, queue, record)
  local tag = string.match(record, "^%d+ (%S+)")
  redis.call("SREM", ctx.prefix .. "known", tag)
  redis.call("ZREM", ctx.prefix .. "expires:" .. queue, tag)
end

function Lanes.forget_waiting(ctx, queue)
  local later = ctx.prefix .. "later:" .. queue
  local due = redis.call("ZRANGEBYSCORE", later, "-inf", "+inf", "LIMIT", 0, Lanes.PURGED_AT_MOST)
  for index = 1, #due do
    redis.call("ZREM", later, due[index])
    Lanes.forget_record(ctx, queue, string.sub(due[index], Schedule.ORDER_LENGTH + 1))
  end
  local gone = #due
  for _ = gone + 1, Lanes.PURGED_AT_MOST do
    local key = redis.call("ZRANGE", ctx.prefix .. "ring:" .. queue, 0, 0)[1]
      or redis.call("ZRANGE", ctx.prefix .. "full:" .. queue, 0, 0)[1]
    if not key then break end
    local group
    local part = redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, nil, queue), 0, 0)[1]
    if not part then
      -- Nothing of this tenant is ready, so its first parked lane is next.
      local lane = redis.call("ZRANGE", ctx.prefix .. "parked:" .. key .. " " .. queue, 0, 0)[1]
      group = Lanes.group_of(ctx, queue, key, lane)
      part = redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, group, queue), 0, 0)[1]
    end
    local record, is_last = Lanes.pop_part(ctx, queue, key, part, group)
    Lanes.forget_record(ctx, queue, record)
    Lanes.task_left(ctx, queue, key)
    if is_last or ctx.ranked then Lanes.leave_ring(ctx, queue, key) end
    gone = gone + 1
  end
  if gone > 0 then Events.write_event(ctx, "fairness.purged", "queue", queue, "tasks", gone) end
  if gone < Lanes.PURGED_AT_MOST then
    -- A task that waits for its time may have rung this bell. The ring's own bell was deleted with the ring.
    redis.call("DEL", ctx.prefix .. "bell:" .. queue)
  end
  return gone
end

--[[
  heads: the part of a tenant's lanes from which a claim takes, if the claim does not take every kind.
]]

-- Sets the heads aside that the claim does not take. Returns whether the next head is taken, or nil if no move
-- is left.
function Lanes.head_is_taken(ctx, queue, key, lane, look)
  for _ = 0, Pick.PASSED_AT_MOST do
    local head = redis.call("LINDEX", ctx.prefix .. Lanes.list_name(key, lane, queue), 0)
    if not head then return false end
    if not look.never[Tasks.read_record(head).kind] then return true end
    if look.moves == 0 then return nil end
    look.moves = look.moves - 1
    local task, message = Tasks.read_record(Lanes.pop_part(ctx, queue, key, lane))
    Lanes.place_back(ctx, queue, task, message)
  end
end

-- The first task of a part has changed. So the part is entered once more, behind the parts that go before it
-- now. Returns the index of the last of these parts.
function Lanes.place_again(ctx, order, parts, index)
  local scores = redis.call("ZMSCORE", ctx.prefix .. order, unpack(parts, index))
  local at = index
  for later = 2, #scores do
    if tonumber(scores[later]) > tonumber(scores[1]) then break end
    at = index + later - 1
  end
  if at > index then table.insert(parts, at + 1, parts[index]) end
  return at
end

-- Returns the first part whose head is taken, and whether there are other parts. It returns nil if there is
-- none, or if no move or no lane is left.
function Lanes.open_part(ctx, queue, key, look, rules)
  -- This call reads at most 1,024 parts. Only a tenant with as many lanes or kinds has more.
  local order = Lanes.order_name(key, nil, queue)
  local parts = redis.call("ZRANGE", ctx.prefix .. order, 0, 1023)
  local moves = look.moves
  for index = 1, #parts + Pick.PASSED_AT_MOST do
    local part, before = parts[index], look.moves
    if not part then return nil end
    local lane, kind = Lanes.read_part(part)
    local taken = kind and not look.never[kind]
    if look.is_local and Limits.full_here(ctx, lane, look, rules) then
      if look.lanes == 0 then return nil end
      look.lanes = look.lanes - 1
      taken = false
    elseif not kind then taken = Lanes.head_is_taken(ctx, queue, key, part, look) end
    if taken and look.moves < before and parts[index + 1] then
      -- Without the heads that were set aside, this part stands further back.
      local at = Lanes.place_again(ctx, order, parts, index)
      if at > index then taken = false end
    end
    if taken then return part, #parts > 1 or look.moves < moves end
    if taken == nil then return nil end
  end
end
