--[[
  places: a tenant with waiting tasks is counted and has a turn in each queue, and its lanes stand where it looks.

  A place is one tenant in one queue. `Places.rebuild` makes everything of a place anew from its lanes. Blocked lanes
  become ready, because the claim that meets them checks their limits again.
]]

-- A place with more lanes, and a queue with more tenants, are not added up.
local LANES_AT_MOST, TENANTS_AT_MOST = 1000, 1000
-- A repair adds up more of them, because nobody runs it often. A lane takes about 10 us, and a tenant 1 us.
local REPAIRED_LANES = 2000
local REPAIRED_TENANTS = 5000

-- Returns the groups and the lanes of a place, and how many tasks are in the lanes. If there are more than `most` lanes,
-- it stops after one more.
function Places.read(it, key, queue, most, others)
  local groups, lanes, seen, total = Lanes.groups_of(it.ctx, queue, key, most), {}, {}, 0
  local function add(found)
    for index = 1, #found do
      if #lanes > most then return end
      local lane = found[index]
      if not seen[lane] then
        seen[lane] = true
        lanes[#lanes + 1] = lane
        total = total + Lanes.length_of(it.ctx, queue, key, lane)
      end
    end
  end
  add(others or {})
  add(redis.call("ZRANGE", it.ctx.prefix .. Lanes.order_name(key, nil, queue), 0, most))
  for index = 1, #groups do
    if #lanes > most then break end
    add(redis.call("ZRANGE", it.ctx.prefix .. Lanes.order_name(key, groups[index], queue), 0, most))
  end
  it.left = it.left - #lanes
  return groups, lanes, total
end

-- As read, for a repair, which needs all lanes. If they are too many it raises an error, so a repair calls it before
-- its first write.
function Places.read_all(it, key, queue, others)
  local groups, lanes, total = Places.read(it, key, queue, REPAIRED_LANES, others)
  if #lanes > REPAIRED_LANES then
    error({err = "the tenant has more than " .. REPAIRED_LANES .. " lanes there, too many for a repair"})
  end
  return groups, lanes, total
end

function Places.check(it, key, queue)
  local ctx, tenant_state = it.ctx, it.ctx.prefix .. Keys.TENANT_STATE .. key
  local _, lanes, total = Places.read(it, key, queue, LANES_AT_MOST)
  if #lanes > LANES_AT_MOST then return end
  local fields = redis.call("HMGET", tenant_state, "q:" .. queue, "at_limit")
  local active = redis.call("ZSCORE", ctx.prefix .. Keys.ACTIVE .. queue, key)
  local out = redis.call("ZSCORE", ctx.prefix .. Keys.BLOCKED .. queue, key)
  local ready = redis.call("EXISTS", ctx.prefix .. Lanes.order_name(key, nil, queue)) == 1
  local name
  if total ~= tonumber(fields[1] or 0) then
    name = "tenant_count"
  elseif total == 0 then
    name = (active or out) and "turn_without_task"
  elseif active and (out or not ready) or not active and (not out or ready and not fields[2]) then
    name = "task_without_turn"
  end
  if name then Check.found(it, name, Keys.TENANT_STATE .. key, queue, function() Places.rebuild(it, key, queue) end) end
end

-- Makes the count, the order and the turn of a place from all its lanes. `others` are lanes, and `group` is a group,
-- that the tables of the place may not name any more.
function Places.rebuild(it, key, queue, others, group)
  local ctx, tenant_state = it.ctx, it.ctx.prefix .. Keys.TENANT_STATE .. key
  local groups, lanes, total = Places.read_all(it, key, queue, others)
  groups[#groups + 1] = group
  redis.call("UNLINK", ctx.prefix .. Keys.BLOCKED_CLASSES .. key .. " " .. queue)
  for index = 1, #groups do Waits.leave(it, key, groups[index], queue) end
  for index = 1, #lanes do
    local lane = lanes[index]
    local class = Lanes.class_of(lane)
    if #class > 1 then redis.call("SADD", ctx.prefix .. Lanes.names_name(key, class, queue), Lanes.name_of(lane)) end
    if Lanes.note_first(ctx, queue, key, lane, Lanes.order_name(key, nil, queue)) then
      Lanes.forget_lane(ctx, queue, key, lane)
    end
  end
  Places.recount(it, key, queue, lanes, total)
  local active_key, blocked_key = ctx.prefix .. Keys.ACTIVE .. queue, ctx.prefix .. Keys.BLOCKED .. queue
  if total == 0 then
    redis.call("ZREM", active_key, key)
    redis.call("ZREM", blocked_key, key)
    Active.note_place(ctx, queue, key)
    return
  end
  if not redis.call("ZSCORE", active_key, key) and not redis.call("ZSCORE", blocked_key, key) then
    Active.enter(ctx, queue, key)
  elseif redis.call("ZSCORE", active_key, key) then
    redis.call("ZREM", blocked_key, key)
  end
  if redis.call("HEXISTS", tenant_state, "at_limit") == 1 then
    Tenants.unblock(ctx, key, it.rules)
  else
    Active.unblock(ctx, queue, key)
  end
  Aging.note_tenant(ctx, queue, key, it.rules.now)
  Active.note_place(ctx, queue, key)
  Active.wake_worker(ctx, queue)
end

function Places.recount(it, key, queue, lanes, total)
  local ctx, tenant_state = it.ctx, it.ctx.prefix .. Keys.TENANT_STATE .. key
  local counted = tonumber(redis.call("HGET", tenant_state, "q:" .. queue) or 0)
  if total > 0 then
    redis.call("HSET", tenant_state, "q:" .. queue, total)
    if redis.call("HEXISTS", tenant_state, "tenant") == 0 then
      local task = Places.first_task(it, key, lanes, queue)
      redis.call("HSET", tenant_state, "tier", task and task.tier or "", "tenant", task and task.tenant or "")
    end
  else
    redis.call("HDEL", tenant_state, "q:" .. queue)
    Places.forget_tenant_state(it, key)
  end
  if total ~= counted and redis.call("HINCRBY", ctx.prefix .. Keys.WAITING, queue, total - counted) <= 0 then
    redis.call("HDEL", ctx.prefix .. Keys.WAITING, queue)
    Active.forget_queue(ctx, queue)
  end
end

-- Returns the first task of the first lane that has one.
function Places.first_task(it, key, lanes, queue)
  for index = 1, #lanes do
    local tag = Lanes.first_of(it.ctx, queue, key, lanes[index])
    local task = tag and Tasks.read(it.ctx, tag)
    if task then return task end
  end
end

-- Forgets the state of a tenant that has nothing waiting in any queue.
function Places.forget_tenant_state(it, key)
  local tenant_state = it.ctx.prefix .. Keys.TENANT_STATE .. key
  local fields = redis.call("HKEYS", tenant_state)
  for index = 1, #fields do
    if string.sub(fields[index], 1, 2) == "q:" then return end
  end
  redis.call("UNLINK", tenant_state)
  redis.call("ZREM", it.ctx.prefix .. Keys.AT_LIMIT, key)
end

--[[
  Three tables lead to a place: its count, its lanes and its turn.
]]

function Places.field(it, key, field)
  if string.sub(field, 1, 2) == "q:" then Places.check(it, key, string.sub(field, 3)) end
end

function Places.member(it, queue, key)
  if redis.call("HEXISTS", it.ctx.prefix .. Keys.TENANT_STATE .. key, "q:" .. queue) == 0 then
    Places.check(it, key, queue)
  end
  Places.rank(it, queue, key)
  Places.lent(it, queue, key)
end

-- A tenant is in the index of those that may be lent places, or not (lending.lua).
function Places.lent(it, queue, key)
  local ctx = it.ctx
  local there, start = redis.call("ZSCORE", ctx.prefix .. Keys.LEND .. queue, key), Lending.start_of(ctx, queue, key)
  if there == start then return end
  Check.found(it, "lend_index", Keys.LEND .. queue, key, function()
    ctx.bursts = "1"
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "bursts", 1)
    Lending.note(ctx, queue, key)
  end)
end

-- Returns the tenant's key, the lane and the queue in the name of a lane's key.
function Places.read_lane(name)
  return string.match(name, "^(%S+) (%S+ %S*) (.*)$")
end

function Places.lane(it, name)
  local ctx, key, lane, queue = it.ctx, Places.read_lane(name)
  if Lanes.length_of(it.ctx, queue, key, lane) == 0 then return end
  local order = Lanes.order_name(key, Lanes.group_of(ctx, queue, key, lane), queue)
  local class = Lanes.class_of(lane)
  local named = #class == 1
    or redis.call("SISMEMBER", ctx.prefix .. Lanes.names_name(key, class, queue), Lanes.name_of(lane)) == 1
  if named and redis.call("ZSCORE", ctx.prefix .. order, lane) then
    if redis.call("HEXISTS", ctx.prefix .. Keys.TENANT_STATE .. key, "q:" .. queue) == 0 then Places.check(it, key, queue) end
    return Places.age(it, key, queue, lane, order)
  end
  Check.found(it, "lane_lost", Keys.LANE .. name, "", function() Places.rebuild(it, key, queue, {lane}) end)
end

-- Claims raise a lane of which `ages` has the tenant and the rank.
function Places.age(it, key, queue, lane, order)
  local ctx, rank = it.ctx, string.sub(lane, 1, 1)
  if not Aging.is_on(ctx) or Lanes.rank_in(ctx, order, lane) == Lanes.HIGHEST or Promotions.is_parked(queue)
    or redis.call("ZSCORE", ctx.prefix .. Keys.AGES .. queue, rank .. " " .. key)
    or Priorities.is_unranked(ctx, queue, key) then return end
  Check.found(it, "age_lost", Keys.AGES .. queue, rank .. " " .. key, function()
    Aging.note_tenant(ctx, queue, key, it.rules.now)
  end)
end

--[[
  A record leads to the place of its task, and each place to its record.
]]

function Places.tag(it, name, tag)
  local ctx, key, lane, queue = it.ctx, Places.read_lane(name)
  local task = Tasks.read(ctx, tag)
  if task and redis.call("HEXISTS", ctx.prefix .. Keys.MESSAGES, tag) == 1 then return end
  if not redis.call("ZSCORE", ctx.prefix .. Keys.LANE .. name, tag) then return end
  Check.found(it, "task_without_message", Keys.LANE .. name, tag, function()
    Places.read_all(it, key, queue, {lane})
    redis.call("ZREM", ctx.prefix .. Keys.LANE .. name, tag)
    Lanes.count_limits(ctx, queue, lane, -1)
    redis.call("ZREM", ctx.prefix .. Keys.EXPIRES .. queue, tag)
    if task then Tasks.delete(ctx, task.tag, task.id) end
    redis.call("HDEL", ctx.prefix .. Keys.MESSAGES, tag)
    Places.rebuild(it, key, queue, {lane})
  end)
end

local function has_id(ctx, task)
  return task.id == "" or redis.call("HGET", ctx.prefix .. Keys.IDS, task.id) == task.tag
    or redis.call("ZSCORE", ctx.prefix .. Keys.SAME_ID .. task.id, task.tag) ~= false
end

function Places.task(it, _, tag)
  local ctx = it.ctx
  local task = Tasks.read(ctx, tag)
  if not task then return end
  if redis.call("HEXISTS", ctx.prefix .. Keys.MESSAGES, tag) == 0 and Find.state_of(ctx, task) ~= "waiting" then
    Check.found(it, "message_lost", "tasks", tag)
  end
  if not has_id(ctx, task) then
    Check.found(it, "task_without_id", "tasks", tag, function() Tasks.add_id(ctx, task) end)
  end
  if Find.state_of(ctx, task) == "delayed" and not redis.call("ZSCORE", ctx.prefix .. Keys.SCHEDULED_OF .. task.key, tag) then
    Check.found(it, "scheduled_task_lost", "tasks", tag, function()
      redis.call("ZADD", ctx.prefix .. Keys.SCHEDULED_OF .. task.key, task.seq, tag)
    end)
  end
  if Find.state_of(ctx, task) == "ended" and not redis.call("ZSCORE", ctx.prefix .. Keys.OUTCOMES, tag) then
    Check.found(it, "task_without_place", "tasks", tag)
  end
end

function Places.scheduled_of(it, key, tag)
  local ctx = it.ctx
  local task = Tasks.read(ctx, tag)
  if task and redis.call("ZSCORE", ctx.prefix .. Keys.SCHEDULED .. task.queue, Schedule.member_of(task)) then return end
  if not redis.call("ZSCORE", ctx.prefix .. Keys.SCHEDULED_OF .. key, tag) then return end
  Check.found(it, "scheduled_task_gone", Keys.SCHEDULED_OF .. key, tag, function()
    redis.call("ZREM", ctx.prefix .. Keys.SCHEDULED_OF .. key, tag)
  end)
end

function Places.message(it, _, tag)
  if Tasks.is_known(it.ctx, tag) or redis.call("HEXISTS", it.ctx.prefix .. Keys.MESSAGES, tag) == 0 then return end
  Check.found(it, "message_without_task", "messages", tag)
end

--[[
  How many tasks wait in a queue.
]]

function Places.count(it, _, queue)
  if Promotions.is_parked(queue) then Check.flag(it, "parked") end
  Places.queue(it, queue)
end

-- Returns the sum of the counts of all tenants of a queue. A thousand tenants take 1 ms.
function Places.sum_of(it, queue)
  local sum = 0
  for _, kind in ipairs({Keys.ACTIVE, Keys.BLOCKED}) do
    local tenants = redis.call("ZRANGE", it.ctx.prefix .. kind .. queue, 0, -1)
    for index = 1, #tenants do
      sum = sum + tonumber(redis.call("HGET", it.ctx.prefix .. Keys.TENANT_STATE .. tenants[index], "q:" .. queue) or 0)
    end
  end
  return sum
end

-- If a queue has more tenants than a call adds up, its count is compared with their number, because each has a task.
function Places.queue(it, queue)
  local ctx = it.ctx
  local counted = tonumber(redis.call("HGET", ctx.prefix .. Keys.WAITING, queue) or 0)
  local active, blocked = ctx.prefix .. Keys.ACTIVE .. queue, ctx.prefix .. Keys.BLOCKED .. queue
  local tenants = redis.call("ZCARD", active) + redis.call("ZCARD", blocked)
  if tenants > TENANTS_AT_MOST then
    if counted >= tenants then return end
  else
    it.left = it.left - tenants
    if counted == Places.sum_of(it, queue) then return end
  end
  Check.found(it, "queue_count", "waiting", queue, function()
    if tenants > REPAIRED_TENANTS then
      error({err = "the queue has more than " .. REPAIRED_TENANTS .. " tenants, too many for a repair"})
    end
    local sum = Places.sum_of(it, queue)
    if sum > 0 then
      redis.call("HSET", ctx.prefix .. Keys.WAITING, queue, sum)
      Active.wake_worker(ctx, queue)
    else
      redis.call("HDEL", ctx.prefix .. Keys.WAITING, queue)
      Active.forget_queue(ctx, queue)
    end
  end)
end

--[[
  A tenant at its limit: its state and `at_limit` agree, and it is at its limit or a time opens it.
]]

function Places.closed(it, _, key)
  Places.tenant(it, key)
end

function Places.tenant(it, key)
  local ctx, rules, tenant_state = it.ctx, it.rules, it.ctx.prefix .. Keys.TENANT_STATE .. key
  local marked = redis.call("HEXISTS", tenant_state, "at_limit") == 1
  local checked = redis.call("ZSCORE", ctx.prefix .. Keys.AT_LIMIT, key)
  local function reopen()
    if redis.call("EXISTS", tenant_state) == 0 then return redis.call("ZREM", ctx.prefix .. Keys.AT_LIMIT, key) end
    redis.call("HSET", tenant_state, "at_limit", 1)
    Tenants.unblock(ctx, key, rules)
  end
  if marked ~= (checked and true or false) then
    return Check.found(it, "tenant_marks", Keys.TENANT_STATE .. key, "at_limit", reopen)
  end
  -- If `checked` in the clock is not the config version, the next claim checks tenants of older config versions again.
  if not marked or math.abs(tonumber(checked)) <= rules.version and rules.checked ~= rules.version then return end
  if redis.call("ZSCORE", ctx.prefix .. Keys.ENDS, " " .. key) then return end
  local verdict = Tenants.check(ctx, key, rules)
  -- If time opens the tenant, `ends` must have it. A lent start may use up the rate of its tenant, which keeps its mark. The
  -- tenant is still in `lend` then, and the claim that meets it there notes the time.
  local is_met = verdict.closed == Lending.MARK
  if not (verdict.open or not is_met and (verdict.closes or verdict.lends)) then return end
  if Check.is_over(it, key) or Check.is_over(it, "tenant:" .. verdict.tenant) then return end
  Check.found(it, "tenant_left_at_limit", "at_limit", key, reopen)
end

--[[
  The index of the active tenants by priority.
]]

function Places.member_of_rank(it, name, key)
  Places.rank(it, string.match(name, "^%d (.*)$"), key)
end

function Places.rank(it, queue, key)
  local ctx = it.ctx
  if not ctx.ranked or Priorities.is_unranked(ctx, queue, key) then return end
  local rank, start = Priorities.rank_of(ctx, queue, key)
  local agrees = true
  for each = 0, 9 do
    local there = redis.call("ZSCORE", ctx.prefix .. Keys.RANK .. each .. " " .. queue, key)
    agrees = agrees and there == (tostring(each) == rank and start)
  end
  if agrees and redis.call("ZSCORE", ctx.prefix .. Keys.RANKED .. queue, key) == (rank or false) then return end
  Check.found(it, "rank_index", Keys.RANKED .. queue, key, function()
    for each = 0, 9 do redis.call("ZREM", ctx.prefix .. Keys.RANK .. each .. " " .. queue, key) end
    redis.call("ZREM", ctx.prefix .. Keys.RANKED .. queue, key)
    Priorities.rank_again(ctx, queue, key)
  end)
end
