--[[
  blocked: groups of blocked lanes, the limit at which each group waits, and the limits that may be open.

  A group holds the blocked lanes of one queue that have the same shared limits, and these limits name it. If a
  private limit rejected a class, the lanes of the class are a group of their own, named "KEY CLASS". Classes that
  differ only by the size of their numbers share one group.

  A group (`groups:QUEUE`, `group:GROUP QUEUE`) waits at one limit (`groups_at:LIMIT QUEUE`). The limit is in
  `available:QUEUE` of its queue and in `waiters:KEY` of its key. If a limit may be open, its score in
  `available:QUEUE` is the time of the last look. Otherwise its score is Blocked.CLOSED or Blocked.PAUSED.
]]

Blocked.CLOSED, Blocked.PAUSED = -1, -2
-- A partition's score is lowered by the version of its queue's numbers, divided by this number.
Blocked.VERSIONS = 2 ^ 24
-- An age of a thousand million tasks adds a thousandth of one start to a tag.
local AGE = 1 / 2 ^ 40

-- Returns the virtual time at which a tenant is due at a key if it comes now. `virtual` is the virtual time of the key, if
-- the caller has it.
function Blocked.shared_start(ctx, limit_key, key, virtual)
  local tag = redis.call("ZSCORE", ctx.prefix .. Keys.FINISH_TAGS .. limit_key, key) or 0
  virtual = virtual or redis.call("HGET", ctx.prefix .. Keys.VIRTUAL_TIMES, "limit " .. limit_key) or 0
  return math.max(tonumber(tag), tonumber(virtual))
end

function Blocked.mark_exhausted(ctx, queue, limit, rules)
  local closed = Config.stopped_ms(ctx, limit, rules) > 0 and Blocked.PAUSED or Blocked.CLOSED
  local version = limit.version or 0
  -- Parked tasks of several queues wait in one, so the version of all numbers stands for that of each queue.
  if ctx.looks_again or limit.version and Promotions.is_parked(queue) then version = Config.queues_version(ctx) end
  closed = closed - version / Blocked.VERSIONS
  redis.call("ZADD", ctx.prefix .. Keys.AVAILABLE .. queue, string.format("%.17g", closed), limit.name)
end

-- Makes claims look at the closed limits of a queue whose scores are in a range, at most `most`. Returns how many.
function Blocked.check_again(ctx, queue, from, to, rules, most)
  local candidates = ctx.prefix .. Keys.AVAILABLE .. queue
  local closed = redis.call("ZRANGEBYSCORE", candidates, from, to, "LIMIT", 0, most)
  for index = 1, #closed do redis.call("ZADD", candidates, rules.logical, closed[index]) end
  return #closed
end

function Blocked.register(ctx, queue, group, limit, rules)
  redis.call("HSET", ctx.prefix .. Keys.GROUPS .. queue, group, limit.name)
  if not redis.call("ZSCORE", ctx.prefix .. Keys.AVAILABLE .. queue, limit.name) then
    redis.call("RPUSH", ctx.prefix .. Keys.WAITERS .. limit.key, limit.name .. " " .. queue)
    Blocked.mark_exhausted(ctx, queue, limit, rules)
  end
  redis.call("HSETNX", ctx.prefix .. Keys.VIRTUAL_TIMES, "limit " .. limit.key, "0")
end

-- Orders a group after its least tag may have changed, or after its last tenant left. Returns the first tenant and its
-- tag, or an empty table if the group has no tenant.
function Blocked.order_group(ctx, queue, group, name)
  local wait = ctx.prefix .. Keys.GROUPS_AT .. name .. " " .. queue
  local first = redis.call("ZRANGE", ctx.prefix .. Keys.GROUP .. group .. " " .. queue, 0, 0, "WITHSCORES")
  if not first[2] then
    redis.call("ZREM", wait, group)
  else
    redis.call("ZADD", wait, first[2], group)
  end
  return first
end

function Blocked.unregister(ctx, queue, group, name)
  redis.call("ZREM", ctx.prefix .. Keys.GROUPS_AT .. name .. " " .. queue, group)
  if redis.call("EXISTS", ctx.prefix .. Keys.GROUPS_AT .. name .. " " .. queue) == 1 then return end
  local key = string.match(name, "^[^|]*")
  redis.call("LREM", ctx.prefix .. Keys.WAITERS .. key, 1, name .. " " .. queue)
  redis.call("ZREM", ctx.prefix .. Keys.AVAILABLE .. queue, name)
  if ctx.looks_again and redis.call("EXISTS", ctx.prefix .. Keys.AVAILABLE .. queue) == 0 then Wake.has_looked(ctx, queue) end
  if redis.call("EXISTS", ctx.prefix .. Keys.WAITERS .. key) == 0 then
    redis.call("ZREM", ctx.prefix .. Keys.TIMERS, key)
    redis.call("HDEL", ctx.prefix .. Keys.VIRTUAL_TIMES, "limit " .. key)
    redis.call("UNLINK", ctx.prefix .. Keys.FINISH_TAGS .. key)
  end
end

-- Enters the key of a limit in `timers` if time alone opens the limit. `wait` is as Limits.wait_ms returns it.
function Blocked.set_timer(ctx, limit, rules, wait)
  if wait > 0 and wait < math.huge then
    redis.call("ZADD", ctx.prefix .. Keys.TIMERS, "LT", rules.logical + wait, limit.key)
  end
end

-- Adds the age of a tenant's first task to its tag. If several tenants are due at one time, the tenant whose
-- first task waits longest goes first. The place of that task among all tasks is this small part of the tag.
function Blocked.add_age(ctx, queue, group, key, tag)
  local order = redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, group, queue), 0, 0, "WITHSCORES")[2]
  return tag + (tonumber(order or 0) % Lanes.AFTER_ALL) * AGE
end

-- Adds a tenant with a blocked lane to a group. A new group waits at `limit`, and a known group stays at its
-- limit.
function Blocked.enter_group(ctx, queue, group, key, limit, rules)
  local name = redis.call("HGET", ctx.prefix .. Keys.GROUPS .. queue, group)
  if not name then Blocked.register(ctx, queue, group, limit, rules) end
  local members = ctx.prefix .. Keys.GROUP .. group .. " " .. queue
  if not redis.call("ZSCORE", members, key) then
    local of = name and string.match(name, "^[^|]*") or limit.key
    local tag = Blocked.add_age(ctx, queue, group, key, Blocked.shared_start(ctx, of, key))
    redis.call("ZADD", members, string.format("%.17g", tag), key)
    Blocked.order_group(ctx, queue, group, name or limit.name)
  end
  if not name then Blocked.set_timer(ctx, limit, rules, limit.opens_ms) end
end

-- Removes a tenant that has no lane in a group any more.
function Blocked.leave_group(ctx, queue, group, key)
  local members = ctx.prefix .. Keys.GROUP .. group .. " " .. queue
  local name = redis.call("HGET", ctx.prefix .. Keys.GROUPS .. queue, group)
  redis.call("ZREM", members, key)
  if redis.call("EXISTS", members) == 1 then
    Blocked.order_group(ctx, queue, group, name)
  else
    redis.call("HDEL", ctx.prefix .. Keys.GROUPS .. queue, group)
    Blocked.unregister(ctx, queue, group, name)
  end
  Saving.left(ctx, name, key, queue)
end

-- The group of a turn waits at another limit from now on.
function Blocked.move_group(ctx, turn, group, limit, rules)
  local queue = turn.queue
  local name = redis.call("HGET", ctx.prefix .. Keys.GROUPS .. queue, group)
  Blocked.unregister(ctx, queue, group, name)
  Blocked.register(ctx, queue, group, limit, rules)
  Blocked.order_group(ctx, queue, group, limit.name)
  Blocked.set_timer(ctx, limit, rules, limit.opens_ms)
  if name ~= limit.name then Saving.group_left(ctx, name, group, queue) end
end

-- Sets the tag of the tenant whose turn it is in its group.
function Blocked.set_tag(ctx, turn, tag)
  redis.call("ZADD", ctx.prefix .. Keys.GROUP .. turn.group .. " " .. turn.queue, tag, turn.key)
  return Blocked.order_group(ctx, turn.queue, turn.group, turn.name)
end

-- Sets the tag of a tenant that was served this task and waits on.
--
-- The claim's next look at the queue uses `budget.known` if two conditions hold. This group is the only group
-- of the only limit that may be open. The tenant is not active, because its place would move. Without it a claim of four
-- at a full key costs 5.0 % more.
function Blocked.note_start(ctx, found, task, budget)
  local limit_key = found.limit_key
  local tag = task.due_at[limit_key] or Blocked.shared_start(ctx, limit_key, found.key)
  local first = Blocked.set_tag(ctx, found, tag)
  if found.alone and found.is_out then
    budget.known = {queue = found.queue, name = found.name, group = found.group, first = first}
  end
end

--[[
  block: a lane leaves the sight of the claims while a limit is closed, and comes back later.
]]

-- One command names at most 1000 lanes, because a call passes a limited number of arguments.
local LANES_AT_ONCE = 1000

-- Moves the lanes of a class from one order to another. Returns how many names the class has. The place of a lane that
-- was alone in its order may be older than its first task.
function Blocked.move_class(ctx, queue, key, class, from, to)
  local names = redis.call("SMEMBERS", ctx.prefix .. Lanes.names_name(key, class, queue))
  Lanes.note_alone(ctx, queue, key, to)
  for first = 1, #names, LANES_AT_ONCE do
    local lanes, there = {}, {}
    for index = first, math.min(#names, first + LANES_AT_ONCE - 1) do lanes[#lanes + 1] = class .. " " .. names[index] end
    local places = redis.call("ZMSCORE", ctx.prefix .. from, unpack(lanes))
    for index = 1, #lanes do
      if places[index] then
        there[#there + 1] = places[index]
        there[#there + 1] = lanes[index]
      end
    end
    redis.call("ZREM", ctx.prefix .. from, unpack(lanes))
    if #there > 0 then redis.call("ZADD", ctx.prefix .. to, unpack(there)) end
  end
  if #names == 1 then Lanes.note_first(ctx, queue, key, class .. " " .. names[1], to) end
  return #names
end

-- Blocks the class of the lane of a turn that a limit rejected. If the limit is the tenant's own, the class waits alone.
function Blocked.block(ctx, turn, limit, rules, budget)
  local queue, key, lane = turn.queue, turn.key, turn.lane
  local before, class = Lanes.group_of(ctx, queue, key, lane), Lanes.class_of(lane)
  local group = limit.private and Lanes.own_group(key, class) or Lanes.shared_of(class)
  if before == group then
    Blocked.move_group(ctx, turn, group, limit, rules)
  else
    redis.call("ZADD", ctx.prefix .. Keys.BLOCKED_CLASSES .. key .. " " .. queue, limit.private and 1 or 0, class)
    Blocked.charge_moves(budget, Blocked.move_class(ctx, queue, key, class, Lanes.order_name(key, before, queue),
      Lanes.order_name(key, group, queue)) - 1)
    Lanes.left_group(ctx, queue, key, before)
    Blocked.enter_group(ctx, queue, group, key, limit, rules)
  end
  Lanes.leave_active(ctx, queue, key)
end

-- Makes the class of the lane of a turn ready again without a look at its limits. The claim that meets a lane of it
-- checks its limits. Each lane stands at the place of its first task.
function Blocked.unblock(ctx, turn, budget)
  local queue, key, lane = turn.queue, turn.key, turn.lane
  local group, class = Lanes.group_of(ctx, queue, key, lane), Lanes.class_of(lane)
  redis.call("ZREM", ctx.prefix .. Keys.BLOCKED_CLASSES .. key .. " " .. queue, class)
  Blocked.charge_moves(budget, Blocked.move_class(ctx, queue, key, class, Lanes.order_name(key, group, queue),
    Lanes.order_name(key, nil, queue)) - 1)
  Lanes.left_group(ctx, queue, key, group)
  if redis.call("HEXISTS", ctx.prefix .. Keys.TENANT_STATE .. key, "at_limit") == 0 then
    Active.unblock(ctx, queue, key)
  end
  Active.note_place(ctx, queue, key)
end

--[[
  candidates: the tenant whose turn it is among the blocked lanes of a queue whose limit has opened.

  A claim moves each lane that it meets and that may not start to a place at which no claim looks. Each of these
  costs one move, and one more for each further name of a class. The table `budget` belongs to one claim:

  - moves: the number of moves that are left.
  - looks: the largest number of active tenants of one queue at which the claim looks.
  - over: true if the claim wanted one more move.
  - queues: the queues that the claim reads.
  - sleep_ms: the time until something of these queues is due.
  - left: the queues in which the claim left a limit's next turn to another queue, because a tenant there is due
    before. If it is nil, the claim leaves no turn.
  - known: the next turn of one queue, which is valid until the next look at any queue.
]]

-- Takes the further moves of a step that costs more than one. The last step of a claim may cost more than were left.
function Blocked.charge_moves(budget, more)
  budget.moves = math.max(0, budget.moves - more)
end

function Blocked.spend_move(budget)
  if budget.moves == 0 then
    budget.over = true
    return false
  end
  budget.moves = budget.moves - 1
  return true
end

-- Returns the lane that is next at a limit, and the key of its tenant, or nil if there is none.
function Blocked.first_lane(ctx, queue, name)
  local group = redis.call("ZRANGE", ctx.prefix .. Keys.GROUPS_AT .. name .. " " .. queue, 0, 0)[1]
  local key = group and redis.call("ZRANGE", ctx.prefix .. Keys.GROUP .. group .. " " .. queue, 0, 0)[1]
  if not key then return nil end
  return Lanes.first_lane(ctx, queue, key, group), key
end

-- Returns whether a tenant waits in `queue` at a limit that may be open, and is due before `tag`.
function Blocked.is_before(ctx, queue, name, tag)
  local looked = redis.call("ZSCORE", ctx.prefix .. Keys.AVAILABLE .. queue, name)
  if not looked or tonumber(looked) < 0 then return false end
  local best = redis.call("ZRANGE", ctx.prefix .. Keys.GROUPS_AT .. name .. " " .. queue, 0, 0, "WITHSCORES")
  return tonumber(best[2]) < tag
end

function Blocked.another_first(ctx, queue, budget, name, tag)
  if not budget.left then return false end
  for index = 1, #budget.queues do
    local other = budget.queues[index]
    if other ~= queue and Blocked.is_before(ctx, other, name, tag) then return true end
  end
  return false
end

-- A claim compares a lane with at most this many limits of each of its keys.
local RIVALS_AT_MOST = 8

-- Returns whether, at a key of the lane of a turn, another tenant of the queue is due before its own. That tenant waits
-- at another limit, so the order of the lane's own limit does not compare the two.
function Blocked.rival_first(ctx, turn)
  local queue, group, name, key = turn.queue, turn.group, turn.name, turn.key
  for limit_key in string.gmatch("," .. Lanes.limits_of(turn.lane), ",([^|]+)|") do
    local waited = redis.call("LRANGE", ctx.prefix .. Keys.WAITERS .. limit_key, 0, RIVALS_AT_MOST - 1)
    local tag
    for index = 1, #waited do
      local rival, where = string.match(waited[index], "^(%S+) (.*)$")
      if where == queue and rival ~= name then
        tag = tag or Blocked.add_age(ctx, queue, group, key, Blocked.shared_start(ctx, limit_key, key))
        if Blocked.is_before(ctx, queue, rival, tag) then return true end
      end
    end
  end
  return false
end

-- Returns whether this process takes the tasks of a lane.
function Blocked.may_take(ctx, lane, skips)
  if not skips then return true end
  if skips.is_local and Limits.worker_is_full(ctx, Lanes.limits_of(lane), skips) then return false end
  return not skips.never[Lanes.name_of(lane)]
end

-- Returns the virtual time at which a tenant with a waiting task is due if it comes now. Also returns whether
-- it is in `blocked`, as it usually is. If both places are lost, it counts as a tenant of `blocked`.
function Blocked.start_of(ctx, queue, key)
  local out = redis.call("ZSCORE", ctx.prefix .. Keys.BLOCKED .. queue, key)
  local start = not out and redis.call("ZSCORE", ctx.prefix .. Keys.ACTIVE .. queue, key)
  if start then return tonumber(start), false end
  return math.max(tonumber(out or 0), ctx.memo.virtual[queue] or Active.virtual_time(ctx, queue)), true
end

-- Makes one move. Returns "next", or "stop" if no move was left for it.
function Blocked.move(budget, act, ...)
  if not Blocked.spend_move(budget) then return "stop" end
  act(...)
  return "next"
end

-- A limit rejects the first tenant of a group. The group goes on to wait at the limit, or at another one.
function Blocked.wait_on(ctx, turn, rejected, rules, budget)
  Blocked.block_by_limit(ctx, turn, rejected, rules)
  if rejected.name == turn.name then
    Blocked.mark_exhausted(ctx, turn.queue, rejected, rules)
    Blocked.set_timer(ctx, rejected, rules, rejected.opens_ms)
  else
    Blocked.block(ctx, turn, rejected, rules, budget)
  end
  Saving.note_rejection(ctx, turn, rejected, rules, budget.queues)
end

-- Looks at the tenant whose turn it is in a group. `turn` has the queue, the group, the limit at which the group waits
-- (name), the first member of the group, and whether another limit of the queue may be open (has_rivals). It gets the
-- fields that Start.start reads.
--
-- Returns "take" if the turn may be served. "next" goes on, "stop" ends the claim's look at the queue, and "pass" goes
-- on and leaves the turn to another limit.
function Blocked.check_group(ctx, turn, rules, budget, skips)
  local queue, group, name, key, tag = turn.queue, turn.group, turn.name, turn.first[1], tonumber(turn.first[2])
  turn.key, turn.limit_key = key, string.match(name, "^[^|]*")
  local due = tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.FINISH_TAGS .. turn.limit_key, key) or 0)
  if due > tag then return Blocked.move(budget, Blocked.set_tag, ctx, turn, due) end
  local lane, other = unpack(redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, group, queue), 0, 1))
  if not lane then
    Stats.count_lost(ctx)
    return Blocked.move(budget, Blocked.leave_group, ctx, queue, group, key)
  end
  turn.lane, turn.others = lane, other ~= nil
  local ready = Lanes.first_lane(ctx, queue, key)
  turn.specs = Lanes.first_limits(ctx, queue, key, lane)
  local rejected = Limits.check(ctx, turn.specs, rules, Saving.place_of(name, queue))
  -- A task that only its amounts keep back would keep others back, so the rest is checked too.
  if rejected and not rejected.action and not rejected.by_amount then
    return Blocked.move(budget, Blocked.wait_on, ctx, turn, rejected, rules, budget)
  end
  turn.verdict = Tenants.check(ctx, key, rules, queue)
  if rejected and not rejected.action and turn.verdict.open then
    return Blocked.move(budget, Blocked.wait_on, ctx, turn, rejected, rules, budget)
  end
  turn.rank = Lanes.rank_in(ctx, Lanes.order_name(key, group, queue), lane)
  if ready and Lanes.rank_in(ctx, Lanes.order_name(key, nil, queue), ready) > turn.rank or not turn.verdict.open
    or not Blocked.may_take(ctx, lane, skips) then
    return Blocked.move(budget, Blocked.unblock, ctx, turn, budget)
  end
  if rejected then return Blocked.move(budget, Blocked.drop_or_reschedule, ctx, turn, rejected, rules, budget) end
  if Blocked.another_first(ctx, queue, budget, name, tag) then
    budget.left[#budget.left + 1] = queue
    return "stop"
  end
  if turn.has_rivals and Blocked.rival_first(ctx, turn) then return Blocked.spend_move(budget) and "pass" or "stop" end
  turn.start, turn.is_out = Blocked.start_of(ctx, queue, key)
  return "take"
end

--[[
  opened: the next of the open limits of a queue, and the tenant whose turn it is there.

  Usually the limit with the oldest look is next. If the claim takes the highest rank first, it compares a
  bounded number of limits. Then the limit whose next task has the highest rank is next. The virtual time of
  each limit decides which tenant is next there.
]]

-- A claim that takes the highest rank first compares at most 8 open limits of a queue.
local LIMITS_AT_MOST = 8
-- Looks of one millisecond are this part of one apart.
local SAME_LOOK = 1 / 1024

-- The next look at an open limit comes after those at all others, also at those with a look in the same millisecond.
function Blocked.check_later(ctx, queue, name, rules)
  local candidates, at = ctx.prefix .. Keys.AVAILABLE .. queue, rules.logical
  local last = redis.call("ZRANGE", candidates, -1, -1, "WITHSCORES")
  if last[1] ~= name then at = math.max(at, tonumber(last[2]) + SAME_LOOK) end
  redis.call("ZADD", candidates, string.format("%.17g", at), name)
end

function Blocked.first_but(names, met, passed)
  for index = 1, #names do
    if not met[names[index]] and not passed[names[index]] then return names[index] end
  end
end

-- Returns the next turn at an open limit that is not in `search.met`, or nil if there is none. `search.known` is the
-- turn that the task served before has stored (note_start). A limit leaves its turn to another limit if a tenant is due
-- before there. If each leaves it to another, the first of them has its turn.
function Blocked.of_limit(ctx, queue, search, rules, budget, skips)
  local known, met, passed, count, may_pass = search.known, search.met, {}, 0, true
  for _ = 0, budget.moves + 1 do
    local turn
    if known then
      turn = {queue = queue, name = known.name, group = known.group, first = known.first, alone = true}
    else
      local names = redis.call(
        "ZRANGEBYSCORE", ctx.prefix .. Keys.AVAILABLE .. queue, 0, "+inf", "LIMIT", 0, 2 + #met + count)
      local name = Blocked.first_but(names, met, passed)
      if not name and count > 0 then
        passed, count, may_pass = {}, 0, false
        name = Blocked.first_but(names, met, passed)
      end
      if not name then return nil end
      local groups = redis.call("ZRANGE", ctx.prefix .. Keys.GROUPS_AT .. name .. " " .. queue, 0, 1)
      turn = {queue = queue, name = name, group = groups[1], alone = not names[2] and not groups[2]}
      turn.has_rivals = may_pass and names[2] ~= nil
      turn.first = redis.call("ZRANGE", ctx.prefix .. Keys.GROUP .. turn.group .. " " .. queue, 0, 0, "WITHSCORES")
    end
    known = nil
    local step = Blocked.check_group(ctx, turn, rules, budget, skips)
    if step == "pass" then passed[turn.name], count = true, count + 1 end
    if step == "take" then
      Blocked.check_later(ctx, queue, turn.name, rules)
      return turn
    end
    if step == "stop" then return nil end
  end
end

-- Returns the next of the blocked lanes of a queue whose limits have opened, or nil if there is none.
function Blocked.of_groups(ctx, queue, rules, budget, skips, known)
  local best, met = nil, {}
  for _ = 1, LIMITS_AT_MOST do
    local found = Blocked.of_limit(ctx, queue, {known = known, met = met}, rules, budget, skips)
    if not budget.ranked[queue] then return found end
    if not found then break end
    if not (best and Lanes.goes_first(best, found.rank, found.start)) then best = found end
    if found.alone then break end
    met[#met + 1], met[found.name], known = found.name, true, nil
  end
  -- The tenant of the best lane may have become active since.
  if #met > 1 then best.start, best.is_out = Blocked.start_of(ctx, queue, best.key) end
  return best
end

--[[
  closed: a limit other than the tier's rejects the first task of a lane.
]]

-- `turn` has the queue, the key and the lane.
function Blocked.block_by_limit(ctx, turn, limit, rules)
  -- The gate has counted and reported the rejection of a parked task.
  if rules.promotes then return end
  local closed = Limits.why_closed(ctx, limit)
  Stats.count_rejection(ctx, closed.strategy, closed.key)
  local task = Events.unreported_of(ctx, turn.queue, turn.key, turn.lane)
  if not task then return end
  task.blocked = Events.emit_exceeded(ctx, task, closed)
  Tasks.write(ctx, task)
end

--[[
  actions: the end of a task that its limits reject, if they demand that it must not wait.

  The claim drops the task or tries it again later. If the claim drops it, `Settle.leave_outcome` gets the key
  of the limit. The task has not started, so its tenant is not charged and its attempts stay as they were.
]]

-- Takes out the first task of the lane of a turn. `rejected` has the action, the limit that demands it, and the time of
-- the next try.
function Blocked.drop_or_reschedule(ctx, turn, rejected, rules, budget)
  local queue = turn.queue
  local tag = Lanes.pop(ctx, turn)
  local task = tag and Tasks.read(ctx, tag)
  if not task then return Stats.count_lost(ctx) end
  local closed = Limits.why_closed(ctx, rejected)
  Stats.count_rejection(ctx, closed.strategy, closed.key)
  Lanes.task_left(ctx, turn)
  Lanes.leave_active(ctx, queue, turn.key)
  local expires = ctx.prefix .. Keys.EXPIRES .. queue
  local ends_at = rules.expiring and redis.call("ZSCORE", expires, tag)
  if rejected.action == "d" then
    if ends_at then redis.call("ZREM", expires, tag) end
    redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "dropped", 1)
    Events.write_event_of(ctx, "rate_limit.dropped", task, "key", rejected.by)
    Settle.leave_outcome(ctx, rules, task, "dropped", rejected.by)
    return
  end
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "rescheduled", 1)
  if task.blocked == "" then task.blocked = Events.emit_exceeded(ctx, task, closed) end
  local wait = Backoff.wait_ms(ctx, rejected, rules, tag .. "." .. Rates.int_text(task.seq),
    rules.snooze_ms / Backoff.JITTER_PARTS)
  Schedule.wait_until(ctx, queue, task, math.min(rules.now + wait, ends_at and tonumber(ends_at) or math.huge))
  Backoff.remember_rescheduled(ctx, rejected.by, queue, task, wait, rules)
  budget.sleep_ms = math.min(budget.sleep_ms, wait)
end
