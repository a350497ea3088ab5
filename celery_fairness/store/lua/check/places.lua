--[[
  places: a tenant with waiting tasks is counted and has a turn in each queue, and its lanes stand where it looks.

  A place is one tenant in one queue. `Places.rebuild` makes everything of a place anew from its lanes. Blocked lanes
  become ready, because the claim that meets them checks their limits again.
]]

-- A place with more lanes, and a queue with more tenants, are not added up.
local LANES_AT_MOST, TENANTS_AT_MOST = 1000, 1000

function Places.name_of(key, part, queue)
  local lane, kind = Lanes.read_part(part)
  return kind and Lanes.back_name(key, lane, kind, queue) or Lanes.list_name(key, lane, queue)
end

function Places.length_of(it, key, part, queue)
  local _, kind = Lanes.read_part(part)
  return redis.call(kind and "ZCARD" or "LLEN", it.ctx.prefix .. Places.name_of(key, part, queue))
end

-- Returns the groups and the parts of a place, and how many tasks are in the parts. It reads each order up to the
-- index `last`.
function Places.read(it, key, queue, last, others)
  local groups, parts, seen, total = {}, {}, {}, 0
  local function add(found)
    for index = 1, #found do
      local part = found[index]
      if not seen[part] then
        seen[part] = true
        parts[#parts + 1] = part
        total = total + Places.length_of(it, key, part, queue)
      end
    end
  end
  add(others or {})
  add(redis.call("ZRANGE", it.ctx.prefix .. Lanes.order_name(key, nil, queue), 0, last))
  local lanes = redis.call("ZRANGE", it.ctx.prefix .. "parked:" .. key .. " " .. queue, 0, last)
  for index = 1, #lanes do
    local group = Lanes.group_of(it.ctx, queue, key, lanes[index])
    if not groups[group] then
      groups[group] = true
      groups[#groups + 1] = group
      add(redis.call("ZRANGE", it.ctx.prefix .. Lanes.order_name(key, group, queue), 0, last))
    end
  end
  it.left = it.left - #parts
  return groups, parts, total
end

function Places.check(it, key, queue)
  local ctx, account = it.ctx, it.ctx.prefix .. "account:" .. key
  local _, parts, total = Places.read(it, key, queue, LANES_AT_MOST)
  if #parts > LANES_AT_MOST then return end
  local fields = redis.call("HMGET", account, "q:" .. queue, "closed")
  local active = redis.call("ZSCORE", ctx.prefix .. "ring:" .. queue, key)
  local out = redis.call("ZSCORE", ctx.prefix .. "full:" .. queue, key)
  local ready = redis.call("EXISTS", ctx.prefix .. Lanes.order_name(key, nil, queue)) == 1
  local name
  if total ~= tonumber(fields[1] or 0) then
    name = "tenant_count"
  elseif total == 0 then
    name = (active or out) and "turn_without_task"
  elseif active and (out or not ready) or not active and (not out or ready and not fields[2]) then
    name = "task_without_turn"
  end
  if name then Check.found(it, name, "account:" .. key, queue, function() Places.rebuild(it, key, queue) end) end
end

-- Makes the count, the order and the turn of a place from all its lanes. `others` are parts, and `group` is a group,
-- that the tables of the place may not name any more.
function Places.rebuild(it, key, queue, others, group)
  local ctx, account = it.ctx, it.ctx.prefix .. "account:" .. key
  local groups, parts, total = Places.read(it, key, queue, -1, others)
  groups[#groups + 1] = group
  redis.call("UNLINK", ctx.prefix .. "parked:" .. key .. " " .. queue)
  for index = 1, #groups do Waits.leave(it, key, groups[index], queue) end
  for index = 1, #parts do
    local lane, kind = Lanes.read_part(parts[index])
    if kind and #lane > 1 then redis.call("SADD", ctx.prefix .. "kinds:" .. key .. " " .. lane .. " " .. queue, kind) end
    Lanes.note_first(ctx, queue, key, parts[index], Lanes.order_name(key, nil, queue))
    Lanes.forget_part(ctx, queue, key, parts[index])
  end
  Places.recount(it, key, queue, parts, total)
  local ring, full = ctx.prefix .. "ring:" .. queue, ctx.prefix .. "full:" .. queue
  if total == 0 then
    redis.call("ZREM", ring, key)
    redis.call("ZREM", full, key)
    if ctx.ranked then Priorities.rank_again(ctx, queue, key) end
    return
  end
  if not redis.call("ZSCORE", ring, key) and not redis.call("ZSCORE", full, key) then
    Active.enter(ctx, queue, key)
  elseif redis.call("ZSCORE", ring, key) then
    redis.call("ZREM", full, key)
  end
  if redis.call("HEXISTS", account, "closed") == 1 then
    Tenants.reopen(ctx, key, it.rules)
  else
    Active.enter_again(ctx, queue, key)
  end
  if ctx.ranked then Priorities.rank_again(ctx, queue, key) end
  Active.ring_bell(ctx, queue)
end

function Places.recount(it, key, queue, parts, total)
  local ctx, account = it.ctx, it.ctx.prefix .. "account:" .. key
  local counted = tonumber(redis.call("HGET", account, "q:" .. queue) or 0)
  if total > 0 then
    redis.call("HSET", account, "q:" .. queue, total)
    if redis.call("HEXISTS", account, "tenant") == 0 then
      local task = Tasks.read_record(Places.first_of(it, key, parts, queue))
      redis.call("HSET", account, "tier", task.tier, "tenant", task.tenant)
    end
  else
    redis.call("HDEL", account, "q:" .. queue)
    Places.forget_account(it, key)
  end
  if total ~= counted and redis.call("HINCRBY", ctx.prefix .. "waiting", queue, total - counted) <= 0 then
    redis.call("HDEL", ctx.prefix .. "waiting", queue)
    Active.forget_ring(ctx, queue)
  end
end

-- Returns the first record of the first part that has a task.
function Places.first_of(it, key, parts, queue)
  for index = 1, #parts do
    local _, kind = Lanes.read_part(parts[index])
    local name = it.ctx.prefix .. Places.name_of(key, parts[index], queue)
    local first = kind and redis.call("ZRANGE", name, 0, 0)[1]
    local record = kind and first and redis.call("HGET", it.ctx.prefix .. "returned", first)
      or not kind and redis.call("LINDEX", name, 0)
    if record then return record end
  end
end

-- Forgets the account of a tenant that has nothing waiting in any queue.
function Places.forget_account(it, key)
  local account = it.ctx.prefix .. "account:" .. key
  local fields = redis.call("HKEYS", account)
  for index = 1, #fields do
    if string.sub(fields[index], 1, 2) == "q:" then return end
  end
  redis.call("UNLINK", account)
  redis.call("ZREM", it.ctx.prefix .. "closed", key)
end

--[[
  Three tables lead to a place: its count, its lanes and its turn.
]]

function Places.field(it, key, field)
  if string.sub(field, 1, 2) == "q:" then Places.check(it, key, string.sub(field, 3)) end
end

function Places.member(it, queue, key)
  if redis.call("HEXISTS", it.ctx.prefix .. "account:" .. key, "q:" .. queue) == 0 then Places.check(it, key, queue) end
  Places.rank(it, queue, key)
end

function Places.lane(it, name)
  local key, lane, queue = string.match(name, "^(%S+) (%S+) (.*)$")
  Places.part(it, key, lane, queue)
end

function Places.back(it, name)
  local key, lane, kind, queue = string.match(name, "^(%S+) (%S+) (%S*) (.*)$")
  Places.part(it, key, lane .. "b " .. kind, queue)
end

function Places.part(it, key, part, queue)
  local ctx, lane, kind = it.ctx, Lanes.read_part(part)
  if Places.length_of(it, key, part, queue) == 0 then return end
  -- A first task that cannot be read is an error here: its part has no place in an order.
  if not kind then Tasks.read_record(Places.first_of(it, key, {part}, queue)) end
  local order = Lanes.order_name(key, Lanes.group_of(ctx, queue, key, lane), queue)
  local known = not kind or #lane == 1
    or redis.call("SISMEMBER", ctx.prefix .. "kinds:" .. key .. " " .. lane .. " " .. queue, kind) == 1
  if known and redis.call("ZSCORE", ctx.prefix .. order, part) then
    if redis.call("HEXISTS", ctx.prefix .. "account:" .. key, "q:" .. queue) == 0 then Places.check(it, key, queue) end
    return
  end
  Check.found(it, "lane_lost", Places.name_of(key, part, queue), "", function()
    Places.rebuild(it, key, queue, {part})
  end)
end

--[[
  Tasks that came back: `back` has the place of such a task, and `returned` has its message.
]]

function Places.task(it, name, tag)
  local ctx = it.ctx
  local key, _, _, queue = string.match(name, "^(%S+) (%S+) (%S*) (.*)$")
  if redis.call("HEXISTS", ctx.prefix .. "returned", tag) == 1 then return end
  if not redis.call("ZSCORE", ctx.prefix .. "back:" .. name, tag) then return end
  Check.found(it, "task_without_message", "back:" .. name, tag, function()
    redis.call("ZREM", ctx.prefix .. "back:" .. name, tag)
    redis.call("SREM", ctx.prefix .. "known", tag)
    redis.call("ZREM", ctx.prefix .. "expires:" .. queue, tag)
    Places.rebuild(it, key, queue)
  end)
end

function Places.message(it, _, tag)
  local ctx = it.ctx
  local record = redis.call("HGET", ctx.prefix .. "returned", tag)
  if not record then return end
  local task = Tasks.read_record(record)
  local lane, queues = Lanes.lane_of(task), redis.call("HKEYS", ctx.prefix .. "waiting")
  local fields = redis.call("HKEYS", ctx.prefix .. "account:" .. task.key)
  for index = 1, #fields do queues[#queues + 1] = string.match(fields[index], "^q:(.*)$") end
  for index = 1, #queues do
    local name = Lanes.back_name(task.key, lane, task.kind, queues[index])
    if redis.call("ZSCORE", ctx.prefix .. name, tag) then return end
  end
  Check.found(it, "message_without_place", "returned", tag)
end

--[[
  How many tasks wait in a queue.
]]

function Places.count(it, _, queue)
  Places.queue(it, queue)
end

-- Returns the sum of the counts of all tenants of a queue. A thousand tenants take 1 ms.
function Places.sum_of(it, queue)
  local sum = 0
  for _, kind in ipairs({"ring:", "full:"}) do
    local tenants = redis.call("ZRANGE", it.ctx.prefix .. kind .. queue, 0, -1)
    for index = 1, #tenants do
      sum = sum + tonumber(redis.call("HGET", it.ctx.prefix .. "account:" .. tenants[index], "q:" .. queue) or 0)
    end
  end
  return sum
end

-- If a queue has more tenants than a call adds up, its count is compared with their number, because each has a task.
function Places.queue(it, queue)
  local ctx = it.ctx
  local counted = tonumber(redis.call("HGET", ctx.prefix .. "waiting", queue) or 0)
  local tenants = redis.call("ZCARD", ctx.prefix .. "ring:" .. queue) + redis.call("ZCARD", ctx.prefix .. "full:" .. queue)
  if tenants > TENANTS_AT_MOST then
    if counted >= tenants then return end
  else
    it.left = it.left - tenants
    if counted == Places.sum_of(it, queue) then return end
  end
  Check.found(it, "queue_count", "waiting", queue, function()
    local sum = Places.sum_of(it, queue)
    if sum > 0 then
      redis.call("HSET", ctx.prefix .. "waiting", queue, sum)
      Active.ring_bell(ctx, queue)
    else
      redis.call("HDEL", ctx.prefix .. "waiting", queue)
      Active.forget_ring(ctx, queue)
    end
  end)
end

--[[
  A tenant at its limit: its account and `closed` agree, and it is at its limit or a time opens it.
]]

function Places.closed(it, _, key)
  Places.tenant(it, key)
end

function Places.tenant(it, key)
  local ctx, rules, account = it.ctx, it.rules, it.ctx.prefix .. "account:" .. key
  local marked = redis.call("HEXISTS", account, "closed") == 1
  local judged = redis.call("ZSCORE", ctx.prefix .. "closed", key)
  local function reopen()
    if redis.call("EXISTS", account) == 0 then return redis.call("ZREM", ctx.prefix .. "closed", key) end
    redis.call("HSET", account, "closed", 1)
    Tenants.reopen(ctx, key, rules)
  end
  if marked ~= (judged and true or false) then return Check.found(it, "tenant_marks", "account:" .. key, "closed", reopen) end
  -- A claim judges anew what was judged by older news.
  if not marked or math.abs(tonumber(judged)) <= rules.version then return end
  if redis.call("ZSCORE", ctx.prefix .. "ends", " " .. key) then return end
  local verdict = Tenants.judge(ctx, key, rules)
  -- For a lease that ends by itself there would be a time in `ends`.
  local stay = redis.call("ZCOUNT", ctx.prefix .. "leases:" .. key, "+inf", "+inf")
  if not verdict.open and stay >= verdict.limit then return end
  if Check.is_over(it, key) or Check.is_over(it, "tenant:" .. verdict.tenant) then return end
  Check.found(it, "tenant_left_closed", "closed", key, reopen)
end

--[[
  The index of a ring by priority.
]]

function Places.member_of_rank(it, name, key)
  Places.rank(it, string.match(name, "^%d (.*)$"), key)
end

function Places.rank(it, queue, key)
  local ctx = it.ctx
  if not ctx.ranked or redis.call("ZSCORE", ctx.prefix .. "unranked:" .. queue, key) then return end
  local start = redis.call("ZSCORE", ctx.prefix .. "ring:" .. queue, key)
  local part = start and redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, nil, queue), 0, 0)[1]
  local rank, agrees = part and string.sub(part, 1, 1) or false, true
  for each = 0, 9 do
    local there = redis.call("ZSCORE", ctx.prefix .. "rank:" .. each .. " " .. queue, key)
    agrees = agrees and there == (tostring(each) == rank and start)
  end
  if agrees and redis.call("ZSCORE", ctx.prefix .. "ranked:" .. queue, key) == rank then return end
  Check.found(it, "rank_index", "ranked:" .. queue, key, function()
    for each = 0, 9 do redis.call("ZREM", ctx.prefix .. "rank:" .. each .. " " .. queue, key) end
    redis.call("ZREM", ctx.prefix .. "ranked:" .. queue, key)
    Priorities.rank_again(ctx, queue, key)
  end)
end
