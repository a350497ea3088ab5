--[[
  parking: groups of parked lanes, where each waits, and what may be open.

  A group is the parked lanes of one queue with the same shared limits, named by these; or one lane
  that a private limit refused, named "KEY LANE"; lanes that differ by the size of their numbers are one. `groups:QUEUE` says at which limit each waits,
  `group:GROUP QUEUE` holds its tenants by their tags, `wait:LIMIT QUEUE` the groups by their least.

  `candidates:QUEUE` holds every limit at which something of the queue waits: when it was looked at
  last where it may be open, else Blocked.CLOSED or Blocked.PAUSED. `waited:KEY` lists "LIMIT QUEUE" in the order in
  which they are looked at next, `opens` says when a key is looked at in any case, `looks` how many of
  those that wait a look has not come to yet: it goes on with the first ones of the list when the key
  with a space before it is due in `opens`.

  `shared` and `tags:KEY` are the virtual time of a key, while somebody waits at it.
]]

Blocked.CLOSED, Blocked.PAUSED = -1, -2
-- Of a partition the version of its queue's numbers, divided by this, is taken off.
Blocked.VERSIONS = 2 ^ 24
-- A thousand million tasks are a part of a thousand of one start.
local AGE = 1 / 2 ^ 40

-- When a tenant is due at a key, if it comes now; `virtual` is the key's time where it is known, `tag` when
-- the tenant was due there last.
function Blocked.shared_start(ctx, limit_key, key, virtual, tag)
  tag = tag or tonumber(redis.call("ZSCORE", ctx.prefix .. "tags:" .. limit_key, key) or 0)
  return math.max(tag, tonumber(virtual or redis.call("HGET", ctx.prefix .. "shared", limit_key) or 0))
end

function Blocked.shut(ctx, queue, limit, stopped)
  local closed = (stopped and Blocked.PAUSED or Blocked.CLOSED) - (limit.version or 0) / Blocked.VERSIONS
  redis.call("ZADD", ctx.prefix .. "candidates:" .. queue, string.format("%.17g", closed), limit.name)
end

function Blocked.register(ctx, queue, group, limit, rules)
  redis.call("HSET", ctx.prefix .. "groups:" .. queue, group, limit.name)
  if not redis.call("ZSCORE", ctx.prefix .. "candidates:" .. queue, limit.name) then
    redis.call("RPUSH", ctx.prefix .. "waited:" .. limit.key, limit.name .. " " .. queue)
    Blocked.shut(ctx, queue, limit, Config.stopped_ms(ctx, limit, rules) > 0)
  end
  redis.call("HSETNX", ctx.prefix .. "shared", limit.key, "0")
end

-- The least tag of a group, which was `before`, may have changed, or it has nobody any more. Returns whose it
-- is, and the tag; nothing in it where it has nobody.
function Blocked.order_group(ctx, queue, group, name, before)
  local wait = ctx.prefix .. "wait:" .. name .. " " .. queue
  local first = redis.call("ZRANGE", ctx.prefix .. "group:" .. group .. " " .. queue, 0, 0, "WITHSCORES")
  if not first[2] then
    redis.call("ZREM", wait, group)
  elseif first[2] ~= before then
    redis.call("ZADD", wait, first[2], group)
  end
  return first
end

function Blocked.forget_looks(ctx, key)
  redis.call("HDEL", ctx.prefix .. "looks", key)
  redis.call("ZREM", ctx.prefix .. "opens", " " .. key)
end

function Blocked.unregister(ctx, queue, group, name)
  redis.call("ZREM", ctx.prefix .. "wait:" .. name .. " " .. queue, group)
  if redis.call("EXISTS", ctx.prefix .. "wait:" .. name .. " " .. queue) == 1 then return end
  local key = string.match(name, "^[^|]*")
  redis.call("LREM", ctx.prefix .. "waited:" .. key, 1, name .. " " .. queue)
  redis.call("ZREM", ctx.prefix .. "candidates:" .. queue, name)
  if redis.call("EXISTS", ctx.prefix .. "waited:" .. key) == 0 then
    redis.call("ZREM", ctx.prefix .. "opens", key)
    Blocked.forget_looks(ctx, key)
    redis.call("HDEL", ctx.prefix .. "shared", key)
    redis.call("UNLINK", ctx.prefix .. "tags:" .. key)
  end
end

-- Where only time opens a limit, it is looked at then.
function Blocked.arm(ctx, limit, rules)
  local wait = Limits.wait_ms(ctx, limit, rules)
  if wait > 0 and wait < math.huge then
    redis.call("ZADD", ctx.prefix .. "opens", "LT", rules.logical + wait, limit.key)
  end
end

-- Of tenants that are due at one time the one whose first task waits longest goes first: its place among all
-- tasks is this small part of its tag.
function Blocked.aged(ctx, queue, group, key, tag)
  local order = redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, group, queue), 0, 0, "WITHSCORES")[2]
  return tag + (tonumber(order or 0) % Lanes.AFTER_ALL) * AGE
end

-- A tenant's lane waits in a group, wherever that waits; where it is new at `limit`.
function Blocked.enter_group(ctx, queue, group, key, limit, rules)
  local name = redis.call("HGET", ctx.prefix .. "groups:" .. queue, group)
  if not name then Blocked.register(ctx, queue, group, limit, rules) end
  local members = ctx.prefix .. "group:" .. group .. " " .. queue
  if not redis.call("ZSCORE", members, key) then
    local of = name and string.match(name, "^[^|]*") or limit.key
    local tag = Blocked.aged(ctx, queue, group, key, Blocked.shared_start(ctx, of, key))
    redis.call("ZADD", members, string.format("%.17g", tag), key)
    Blocked.order_group(ctx, queue, group, name or limit.name)
  end
  if not name then Blocked.arm(ctx, limit, rules) end
end

-- A tenant has no lane in a group any more.
function Blocked.leave_group(ctx, queue, group, key)
  local members = ctx.prefix .. "group:" .. group .. " " .. queue
  local name = redis.call("HGET", ctx.prefix .. "groups:" .. queue, group)
  redis.call("ZREM", members, key)
  if redis.call("EXISTS", members) == 1 then
    Blocked.order_group(ctx, queue, group, name)
  else
    redis.call("HDEL", ctx.prefix .. "groups:" .. queue, group)
    Blocked.unregister(ctx, queue, group, name)
  end
end

function Blocked.move_group(ctx, queue, group, limit, rules)
  local name = redis.call("HGET", ctx.prefix .. "groups:" .. queue, group)
  Blocked.unregister(ctx, queue, group, name)
  Blocked.register(ctx, queue, group, limit, rules)
  Blocked.order_group(ctx, queue, group, limit.name)
  Blocked.arm(ctx, limit, rules)
end

function Blocked.set_tag(ctx, queue, group, name, key, tag, before)
  redis.call("ZADD", ctx.prefix .. "group:" .. group .. " " .. queue, tag, key)
  return Blocked.order_group(ctx, queue, group, name, before)
end

-- The tenant of what was found in a group was served this task and waits on; `is_last` where somebody has
-- deleted what says so. Where it is the only group of the only limit that may be open, and the tenant is in no
-- ring, in which it would be moved, the claim's next look at the queue knows whose turn it is (turns.known).
function Blocked.served(ctx, queue, found, task, turns, is_last)
  local limit_key = found.limit_key
  local tag = task.due_at[limit_key] or Blocked.shared_start(ctx, limit_key, found.key)
  local first = Blocked.set_tag(ctx, queue, found.group, found.name, found.key, tag, found.tag)
  if found.alone and found.is_out and not is_last then
    turns.known = {queue = queue, name = found.name, group = found.group, first = first, member = found.member}
  end
end

--[[
  park: lanes leave the claims' sight while a limit is closed, and come back.
]]

-- More kinds than any program has: a part that stayed behind would be met by every claim.
local KINDS_AT_MOST = 1000000

-- The parts that a lane may have.
function Blocked.parts_of(ctx, queue, key, lane)
  local kinds = redis.call("SRANDMEMBER",
    ctx.prefix .. "kinds:" .. key .. " " .. lane .. " " .. queue, KINDS_AT_MOST)
  local parts = {lane}
  for index = 1, #kinds do parts[index + 1] = lane .. "b " .. kinds[index] end
  return parts
end

-- Parts that one command names: a call may give it so many words.
local PARTS_AT_ONCE = 1000

-- Moves parts from one order to another.
function Blocked.move_parts(ctx, parts, from, to)
  for first = 1, #parts, PARTS_AT_ONCE do
    local some = {unpack(parts, first, math.min(#parts, first + PARTS_AT_ONCE - 1))}
    local orders, there = redis.call("ZMSCORE", ctx.prefix .. from, unpack(some)), {}
    for index = 1, #some do
      if orders[index] then
        there[#there + 1] = orders[index]
        there[#there + 1] = some[index]
      end
    end
    redis.call("ZREM", ctx.prefix .. from, unpack(some))
    if #there > 0 then redis.call("ZADD", ctx.prefix .. to, unpack(there)) end
  end
end

-- A limit refused a lane: it waits there, alone where the limit is the tenant's own.
function Blocked.park(ctx, queue, key, lane, limit, rules, turns)
  local before = Lanes.group_of(ctx, queue, key, lane)
  local group = limit.private and key .. " " .. Limits.shape_of(lane) or Lanes.shared_of(lane)
  if before == group then
    Blocked.move_group(ctx, queue, group, limit, rules)
  else
    local parked = ctx.prefix .. "parked:" .. key .. " " .. queue
    redis.call("ZADD", parked, limit.private and 1 or 0, lane)
    local parts = Blocked.parts_of(ctx, queue, key, lane)
    Tasks.weigh(turns, #parts - 1)
    Blocked.move_parts(ctx, parts, Lanes.order_name(key, before, queue), Lanes.order_name(key, group, queue))
    Lanes.left_group(ctx, queue, key, before)
    Blocked.enter_group(ctx, queue, group, key, limit, rules)
  end
  Lanes.leave_ring(ctx, queue, key)
end

-- A lane is ready again, whatever its limits say: whoever meets it asks them. Its parts stand where
-- their first tasks do.
function Blocked.unpark(ctx, queue, key, lane, turns)
  local group = Lanes.group_of(ctx, queue, key, lane)
  local shelf, ready = Lanes.order_name(key, group, queue), Lanes.order_name(key, nil, queue)
  redis.call("ZREM", ctx.prefix .. "parked:" .. key .. " " .. queue, lane)
  local parts = Blocked.parts_of(ctx, queue, key, lane)
  Tasks.weigh(turns, #parts - 1)
  Blocked.move_parts(ctx, parts, shelf, ready)
  for index = 1, #parts do Lanes.note_first(ctx, queue, key, parts[index], ready) end
  Lanes.left_group(ctx, queue, key, group)
  if redis.call("HEXISTS", ctx.prefix .. "account:" .. key, "closed") == 0 then
    Active.enter_again(ctx, queue, key)
  end
  if ctx.ranked then Priorities.rank_again(ctx, queue, key) end
end

--[[
  candidates: whose turn it is among the parked lanes of a queue whose limit has opened.

  What is met on the way and may not start is put where no claim looks: each of these is one move.
  `turns` is a claim's own: moves that are left, looks (tenants of one ring at most), over (one more
  move was wanted), queues that it asks, sleep_ms (how soon something of them is due), and left, the
  queues in which a limit's next was left to another queue, where somebody is due before; noted, at
  which limits ("NAME QUEUE") it is written that they were looked at now; and known, of one queue whose
  turn it is, until the next look at any.
]]

function Blocked.spend(turns)
  if turns.moves == 0 then
    turns.over = true
    return false
  end
  turns.moves = turns.moves - 1
  return true
end

-- Whether somebody waits in another queue at a limit that may be open, due before `tag`.
function Blocked.is_before(ctx, queue, name, tag)
  local looked = redis.call("ZSCORE", ctx.prefix .. "candidates:" .. queue, name)
  if not looked or tonumber(looked) < 0 then return false end
  local best = redis.call("ZRANGE", ctx.prefix .. "wait:" .. name .. " " .. queue, 0, 0, "WITHSCORES")
  return tonumber(best[2]) < tag
end

function Blocked.another_first(ctx, queue, turns, name, tag)
  if not turns.left then return false end
  for index = 1, #turns.queues do
    local other = turns.queues[index]
    if other ~= queue and Blocked.is_before(ctx, other, name, tag) then return true end
  end
  return false
end

-- Whether the head of a part is of a kind that this claim takes.
function Blocked.takes(ctx, queue, key, part, look, rules)
  if not look then return true end
  local lane, kind = Lanes.read_part(part)
  if look.is_local and Limits.full_here(ctx, lane, look, rules) then return false end
  if not kind then
    local head = redis.call("LINDEX", ctx.prefix .. Lanes.list_name(key, lane, queue), 0)
    kind = Tasks.read_record(head).kind
  end
  return not look.never[kind]
end

-- The virtual time at which a tenant with something waiting is due, if it comes now; and whether it is
-- in `full`, as it mostly is. Where somebody has deleted both it comes into that one.
function Blocked.start_of(ctx, queue, key, rules)
  local out = redis.call("ZSCORE", ctx.prefix .. "full:" .. queue, key)
  local start = not out and redis.call("ZSCORE", ctx.prefix .. "ring:" .. queue, key)
  if start then return tonumber(start), false end
  return math.max(tonumber(out or 0), rules.virtual[queue] or Active.virtual_time(ctx, queue)), true
end

-- Looks at the tenant whose turn it is in a group. Returns what may be served; else nothing, and
-- whether to go on.
function Blocked.look_at_group(ctx, queue, name, group, first, rules, turns, look)
  local key, tag = first[1], tonumber(first[2])
  local limit_key = string.match(name, "^[^|]*")
  local now = tonumber(redis.call("ZSCORE", ctx.prefix .. "tags:" .. limit_key, key) or 0)
  if now > tag then
    if not Blocked.spend(turns) then return nil, false end
    Blocked.set_tag(ctx, queue, group, name, key, now)
    return nil, true
  end
  local part, other = unpack(redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, group, queue), 0, 1))
  if not part then
    -- Somebody has deleted its lanes: the others of the group go on.
    if not Blocked.spend(turns) then return nil, false end
    Blocked.leave_group(ctx, queue, group, key)
    return nil, true
  end
  local ready = redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, nil, queue), 0, 0)[1]
  local lane = Lanes.read_part(part)
  local refused = Limits.refusal(ctx, string.sub(lane, 3), rules)
  if refused and not refused.action then
    if not Blocked.spend(turns) then return nil, false end
    Blocked.block_by_limit(ctx, queue, key, part, refused, rules, turns)
    if refused.name == name then
      Blocked.shut(ctx, queue, refused, Config.stopped_ms(ctx, refused, rules) > 0)
      Blocked.arm(ctx, refused, rules)
    else
      Blocked.park(ctx, queue, key, lane, refused, rules, turns)
    end
    return nil, true
  end
  local verdict = Tenants.judge(ctx, key, rules, queue)
  if ready and string.sub(ready, 1, 1) > string.sub(part, 1, 1) or not verdict.open
    or not Blocked.takes(ctx, queue, key, part, look, rules) then
    if not Blocked.spend(turns) then return nil, false end
    Blocked.unpark(ctx, queue, key, lane, turns)
    return nil, true
  end
  if refused then
    if not Blocked.spend(turns) then return nil, false end
    Blocked.act(ctx, queue, key, part, group, other ~= nil, refused, rules, turns)
    return nil, true
  end
  if Blocked.another_first(ctx, queue, turns, name, tag) then
    turns.left[#turns.left + 1] = queue
    return nil, false
  end
  local place = name .. " " .. queue
  if not turns.noted[place] then
    redis.call("ZADD", ctx.prefix .. "candidates:" .. queue, rules.logical, name)
    turns.noted[place] = true
  end
  local start, is_out = Blocked.start_of(ctx, queue, key, rules)
  return {key = key, part = part, others = other ~= nil, lane = lane, group = group, name = name,
    tag = first[2], due = now, limit_key = limit_key, verdict = verdict, start = start, is_out = is_out}, false
end

--[[
  opened: which of the limits of a queue that have opened is next, and whose turn it is there.

  Mostly the one that was looked at longest ago. Where the highest rank goes first, of a bounded number
  the one whose next task has the highest; who is next at each its own time says.
]]

-- Limits of a queue that are open and are compared, where the highest rank goes first.
local LIMITS_AT_MOST = 8

function Blocked.first_but(names, met)
  for index = 1, #names do
    if not met[names[index]] then return names[index] end
  end
end

-- Returns who is next of those that wait at a limit that has opened, but those that were `met`; nil where
-- nobody is. Where the task served before says whose turn it is, that is `known` (served).
function Blocked.of_limit(ctx, queue, rules, turns, look, known, met)
  for _ = 0, turns.moves + 1 do
    local name, group, first, alone
    if known then
      name, group, first, alone = known.name, known.group, known.first, true
    else
      local names = redis.call(
        "ZRANGEBYSCORE", ctx.prefix .. "candidates:" .. queue, 0, "+inf", "LIMIT", 0, 2 + #met)
      name = Blocked.first_but(names, met)
      if not name then return nil end
      local groups = redis.call("ZRANGE", ctx.prefix .. "wait:" .. name .. " " .. queue, 0, 1)
      group, alone = groups[1], not names[2] and not groups[2]
      first = redis.call("ZRANGE", ctx.prefix .. "group:" .. group .. " " .. queue, 0, 0, "WITHSCORES")
    end
    known = nil
    local found, goes_on = Blocked.look_at_group(ctx, queue, name, group, first, rules, turns, look)
    if found then found.alone = alone end
    if not goes_on then return found end
  end
end

-- Returns who of the queue's parked lanes is next where limits have opened; nil where nobody is.
function Blocked.of_groups(ctx, queue, rules, turns, look, known)
  local best, met = nil, {}
  for _ = 1, LIMITS_AT_MOST do
    local found = Blocked.of_limit(ctx, queue, rules, turns, look, known, met)
    if not turns.ranked[queue] then return found end
    if not found then break end
    local rank = string.sub(found.part, 1, 1)
    if not (best and Lanes.goes_first(best, rank, found.start)) then best = found end
    if found.alone then break end
    met[#met + 1], met[found.name], known = found.name, true, nil
  end
  -- Its tenant may have come into the ring since.
  if #met > 1 then best.start, best.is_out = Blocked.start_of(ctx, queue, best.key, rules) end
  return best
end

--[[
  closed: a limit beside the tier's refuses the first task of a part.
]]

function Blocked.block_by_limit(ctx, queue, key, part, limit, rules, turns)
  local closed = Limits.why_closed(ctx, limit, rules)
  Stats.count_exceeded(ctx.prefix .. "exceeded", closed.strategy, closed.key)
  local task, message, tag = Events.first_of(ctx, queue, key, part)
  if not task then return end
  Tasks.weigh(turns, Tasks.units_of(message))
  if task.blocked ~= "" then return end
  Events.tell_blocked(ctx, queue, task, message, closed)
  Events.mark_first(ctx, queue, key, part, task, message, tag)
end

--[[
  actions: what becomes of a task that its limits refuse, where they say that it shall not wait.

  It may be dropped, with an obituary that names the key of the limit, or tried again later. It has
  not started: its tenant is not charged, its attempts are those of before.
]]

-- Takes out the first task of a part; `refused` says what of it, by whom and how soon.
function Blocked.act(ctx, queue, key, part, group, others, refused, rules, turns)
  local record = Lanes.pop_part(ctx, queue, key, part, group, others)
  -- Somebody has deleted the lane: whoever looks next finds nothing of it.
  if not record then return end
  local task, message = Tasks.read_record(record)
  Tasks.weigh(turns, Tasks.units_of(message))
  local closed = Limits.why_closed(ctx, refused, rules)
  Stats.count_exceeded(ctx.prefix .. "exceeded", closed.strategy, closed.key)
  Lanes.task_left(ctx, queue, key)
  Lanes.leave_ring(ctx, queue, key)
  local expires = ctx.prefix .. "expires:" .. queue
  local ends_at = rules.expiring and redis.call("ZSCORE", expires, task.tag)
  if refused.action == "d" then
    if ends_at then redis.call("ZREM", expires, task.tag) end
    redis.call("SREM", ctx.prefix .. "known", task.tag)
    redis.call("HINCRBY", ctx.prefix .. "counts", "dropped", 1)
    Events.write_event_of(ctx, "rate_limit.dropped", queue, task, message, "key", refused.by)
    Settle.leave_obituary(ctx, rules, Tasks.write_running(refused.by, "dropped", queue, record))
    return
  end
  redis.call("HINCRBY", ctx.prefix .. "counts", "rescheduled", 1)
  if task.blocked == "" then Events.tell_blocked(ctx, queue, task, message, closed) end
  local wait = Backoff.pace_ms(ctx, refused.says, refused.again_ms, refused.why == "full", rules,
    task.tag .. "." .. Rates.whole(task.seq), rules.snooze_ms / Backoff.JITTER_PARTS)
  Schedule.wait_until(ctx, queue, task, message, math.min(rules.now + wait, ends_at and tonumber(ends_at) or math.huge))
  Backoff.remember_later(ctx, refused.by, queue, task, wait, rules)
  turns.sleep_ms = math.min(turns.sleep_ms, wait)
end
