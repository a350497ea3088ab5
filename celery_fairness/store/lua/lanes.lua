--[[
  Lanes: the waiting tasks of one queue, one tenant, one rank and one set of limits, first in, first
  out; and what is counted of them: `waiting` by queue, `account:KEY` by tenant and queue.

  What was taken out and comes back stands in parts of its own (`back`), one for each kind, by sequence
  number. It is served first, because whatever was taken out is older than all that is left.

  `ready:KEY QUEUE` orders the parts of a tenant's lanes that no limit keeps, each named LANE or
  `LANEb KIND`, where a lane is RANK or `RANK,LIMITS`: by rank and by the sequence number of the first
  task, as it was noted last. A parked lane's parts stand in `shelf:KEY GROUP QUEUE`, in that order;
  `parked:KEY QUEUE` says of each parked lane whether it waits alone. `kinds:KEY LANE QUEUE` says of a
  lane with limits which kinds came back.
]]

function Lanes.list_name(key, lane, queue)
  return "lane:" .. key .. " " .. lane .. " " .. queue
end

function Lanes.back_name(key, lane, kind, queue)
  return "back:" .. key .. " " .. lane .. " " .. kind .. " " .. queue
end

-- Returns the lane of a part, and its kind; nil where it is of none.
function Lanes.read_part(part)
  if #part == 1 then return part end
  local lane, kind = string.match(part, "^(%S+)b (.*)$")
  return lane or part, kind
end

function Lanes.order_name(key, group, queue)
  if group then return "shelf:" .. key .. " " .. group .. " " .. queue end
  return "ready:" .. key .. " " .. queue
end

-- Whether what was found goes before who stands at `start`, of a rank where the highest goes first. Of equals
-- it does: what is parked was met before.
function Lanes.goes_first(found, rank, start)
  local its = string.sub(found.part, 1, 1)
  if rank and its ~= rank then return its > rank end
  return found.start <= start
end


-- More than there will be sequence numbers; with a rank before it, not more than a double holds.
Lanes.AFTER_ALL = 2 ^ 49

function Lanes.note(ctx, order, part, seq)
  local rank = tonumber(string.sub(part, 1, 1))
  redis.call("ZADD", ctx.prefix .. order, string.format("%.0f", (9 - rank) * Lanes.AFTER_ALL + seq), part)
end

-- By the task that is first in a part now; a part that is empty goes.
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
  groups: in which lane a task waits, and where a lane does.
]]

function Lanes.lane_of(task)
  return task.limits == "" and task.rank or task.rank .. "," .. task.limits
end

-- The limits of a lane that are shared, which name the group that it waits in, whatever their numbers.
function Lanes.shared_of(lane)
  local words, shared = string.sub(Limits.shape_of(lane), 3), {}
  for word in string.gmatch(words, "[^,]+") do
    if string.sub(word, -1) ~= "p" then shared[#shared + 1] = word end
  end
  return table.concat(shared, ",")
end

-- In which group a lane waits; nil where it is ready. Without a limit nothing is parked.
function Lanes.group_of(ctx, queue, key, lane)
  if #lane == 1 then return nil end
  local alone = redis.call("ZSCORE", ctx.prefix .. "parked:" .. key .. " " .. queue, lane)
  if not alone then return nil end
  return alone == "1" and key .. " " .. Limits.shape_of(lane) or Lanes.shared_of(lane)
end

--[[
  waiting: a task begins to wait, and what is counted of it.
]]

-- Places a task last in its lane. Returns whether the lane has something anew.
function Lanes.place_last(ctx, queue, task, message)
  local key, lane = task.key, Lanes.lane_of(task)
  local length = redis.call("RPUSH", ctx.prefix .. Lanes.list_name(key, lane, queue), Tasks.write_record(task, message))
  if length > 1 then return false end
  Lanes.note(ctx, Lanes.order_name(key, Lanes.group_of(ctx, queue, key, lane), queue), lane, task.seq)
  return true
end

-- Places a task that was taken out, or may end by itself, before its lane.
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

-- The tier beside the lanes is that of the last put which knew one. A tenant that was found at its
-- limit by another tier is judged anew.
function Lanes.note_tier(ctx, queue, task, is_put, tier, closed)
  if tier and (not is_put or task.tier == tier or task.tier == "") then return end
  redis.call("HSET", ctx.prefix .. "account:" .. task.key, "tier", task.tier, "tenant", task.tenant)
  if closed then
    redis.call("ZADD", ctx.prefix .. "closed", 0, task.key)
    Active.ring_bell(ctx, queue)
  end
end

-- What waits at a limit may be open, and have been left by who looked.
function Lanes.joins_parked(ctx, queue, group)
  local name = redis.call("HGET", ctx.prefix .. "groups:" .. queue, group)
  local opened = name and redis.call("ZSCORE", ctx.prefix .. "candidates:" .. queue, name)
  -- Somebody may have deleted it.
  if opened and tonumber(opened) >= 0 then Active.ring_bell(ctx, queue) end
end

-- A task will wait, from the server time `since` where it did not wait before. Returns what is known of
-- its tenant: tier, whether it is closed, and how many wait.
function Lanes.will_wait(ctx, queue, task, since)
  local known = redis.call("HMGET", ctx.prefix .. "account:" .. task.key, "tier", "closed", "q:" .. queue)
  if since and (task.put or "") == "" then
    task.put = string.format(known[3] and "%d+" or "%d", since)
  end
  return known
end

-- A task was placed that did not wait: `is_put` for the first time, `is_new` where it may be served
-- before what waits; `known` as it was then.
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
    -- Its token may have gone to a worker that died.
    Active.ring_bell(ctx, queue)
  end
end

-- A task begins to wait, last in its lane.
function Lanes.enqueue(ctx, queue, task, message, is_put, since)
  local known = Lanes.will_wait(ctx, queue, task, since)
  local is_new = Lanes.place_last(ctx, queue, task, message)
  Lanes.begin_waiting(ctx, queue, task, is_put, is_new, known)
end

-- A task begins to wait that may end there by itself: where it is found by its tag, in its place.
function Lanes.enqueue_expiring(ctx, queue, task, message, is_put, since)
  local known = Lanes.will_wait(ctx, queue, task, since)
  Lanes.place_back(ctx, queue, task, message)
  Lanes.begin_waiting(ctx, queue, task, is_put, true, known)
end

-- A task waits again, in its place of before.
function Lanes.enqueue_back(ctx, queue, task, message)
  Lanes.enqueue_expiring(ctx, queue, task, message, false)
end

--[[
  taking: tasks leave their lanes.
]]

-- A tenant may have nothing more in a group.
function Lanes.left_group(ctx, queue, key, group)
  if group and redis.call("EXISTS", ctx.prefix .. Lanes.order_name(key, group, queue)) == 0 then
    Blocked.leave_group(ctx, queue, group, key)
  end
end

-- A tenant of whom nothing is ready is in no ring.
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

-- A part of a lane may have no task any more, and the lane none.
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

-- The record of the first task of a part, which is in no lane any more, nothing where somebody has
-- deleted it; whether nothing is left in the order that it stood in; and whether the part is gone.
-- `others` says whether there are other parts in it, nil where the caller does not know; `waiting` how
-- many tasks of the tenant wait in the queue, nil likewise.
function Lanes.pop_part(ctx, queue, key, part, group, others, waiting)
  local order = Lanes.order_name(key, group, queue)
  if others == nil then others = redis.call("ZRANGE", ctx.prefix .. order, 0, 1)[2] ~= nil end
  local lane, kind = Lanes.read_part(part)
  local list = kind and Lanes.back_name(key, lane, kind, queue) or Lanes.list_name(key, lane, queue)
  local record
  if kind then
    local tag = redis.call("ZPOPMIN", ctx.prefix .. list)[1]
    -- Else somebody has deleted the list.
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

-- A task has left its lane; `finish` and `virtual` where the tenant was charged for it, as for leave,
-- `waiting` as for pop_part. Returns how many the tenant has left in the queue.
function Lanes.task_left(ctx, queue, key, finish, waiting, virtual)
  local account = ctx.prefix .. "account:" .. key
  local of_tenant = waiting == 1 and 0 or redis.call("HINCRBY", account, "q:" .. queue, -1)
  local of_queue = redis.call("HINCRBY", ctx.prefix .. "waiting", queue, -1)
  if of_tenant == 0 then
    -- Tier, tenant, and what is said of this queue; one more of another, its mean, that it is closed.
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
  removing: a task leaves its lane from wherever it stands there.
]]

-- A task was taken out of a list of the lane: `kind` of those that came back, else nil.
function Lanes.removed(ctx, queue, key, lane, kind)
  local part = kind and lane .. "b " .. kind or lane
  local group = Lanes.group_of(ctx, queue, key, lane)
  Lanes.note_first(ctx, queue, key, part, Lanes.order_name(key, group, queue))
  Lanes.forget_part(ctx, queue, key, part)
  Lanes.left_group(ctx, queue, key, group)
  Lanes.task_left(ctx, queue, key)
  Lanes.leave_ring(ctx, queue, key)
end

-- Takes a task that came back, with this record, out of its lane. Returns whether it waited there.
function Lanes.remove_back(ctx, queue, task)
  local lane = Lanes.lane_of(task)
  if redis.call("ZREM", ctx.prefix .. Lanes.back_name(task.key, lane, task.kind, queue), task.tag) == 0 then
    return false
  end
  redis.call("HDEL", ctx.prefix .. "returned", task.tag)
  Lanes.removed(ctx, queue, task.key, lane, task.kind)
  return true
end

-- From which end of a list, which is in the order of its tasks, a task is found sooner: 1 or -1; nil
-- where it is not between them.
function Lanes.nearer_end(list, seq)
  local first = tonumber(string.match(redis.call("LINDEX", list, 0) or "", "^%d+"))
  local last = tonumber(string.match(redis.call("LINDEX", list, -1) or "", "^%d+"))
  if not first or seq < first or seq > last then return nil end
  return seq - first <= last - seq and 1 or -1
end

-- Takes a task out of a queue, with this record, wherever it waits. Returns whether it waited there:
-- false or nil where not, else true; where it waited for its time, that time.
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
  forget_waiting: forget a bounded part of what waits in a queue; what runs is not touched.

  Returns how many were forgotten; nothing is left where they are fewer than Lanes.PURGED_AT_MOST.
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
      -- Nothing of it is ready: of its parked lanes the first.
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
    -- Of tasks that waited for their time; the ring's went with it.
    redis.call("DEL", ctx.prefix .. "bell:" .. queue)
  end
  return gone
end

--[[
  heads: which part of a tenant's lanes a claim takes from, where it does not take every kind.
]]

-- Sets heads aside. Returns whether the next one is taken; nil: no move is left.
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

-- A part stands where its first task does now: it comes once more behind those that go before it. Returns
-- behind which it does.
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

-- The first part whose head is taken, and whether there are others. Returns nil where there is none,
-- or neither a move nor a lane is left.
function Lanes.open_part(ctx, queue, key, look, rules)
  -- There are more only where a tenant has so many lanes.
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
      -- Without what was set aside it stands further back.
      local at = Lanes.place_again(ctx, order, parts, index)
      if at > index then taken = false end
    end
    if taken then return part, #parts > 1 or look.moves < moves end
    if taken == nil then return nil end
  end
end
