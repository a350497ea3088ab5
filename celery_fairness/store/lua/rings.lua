--[[
  rings: one of several partitions, whose turns a worker merges with those of the others (ADR 27).

  The tenants of a queue in one partition are a ring: they take turns by their starts. A worker goes to the ring with the
  least start, so a claim stops where another ring has a lesser one. Four rules keep the starts of all rings comparable:

  - If a ring had no turn left after its last claim, its virtual time moves on to that of the worker, which has served
    others since. A tenant that came meanwhile stands at the older time. It has one turn early, and then no credit.
  - A queue in which nothing waits keeps its virtual time. If it began anew, its next tenant would go before all others.
  - Debts end when the virtual time passes them. That no tenant of a ring competes does not mean that none of another does.
  - After a worker has found all rings idle, it moves their virtual times on to the last debt.

  A wake-up of a partition is a mark. The caller of the function that has set it rings the bell of the queue. All workers
  sleep at the bells, which are in the home of the installation.

  The prefix of a partition ends with `#NUMBER}:`. An installation with one partition has no number, and nothing here
  costs it a command.
]]

-- One claim clears at most 64 debts that the virtual time has passed.
local CLEAR_AT_MOST = 64

function Rings.is_partition(ctx)
  return string.find(ctx.prefix, "#%d+}:$") ~= nil
end

-- A wake-up of a queue was set: `kind` is "new" for a task that came, and "left" for tasks that a claim has left.
function Rings.note_wakeup(ctx, kind, queue)
  if not Rings.is_partition(ctx) then return end
  local bells = ctx.result.bells or {new = {}, left = {}}
  ctx.result.bells, bells[kind][queue] = bells, true
end

-- The wake-ups of a queue were removed.
function Rings.drop_wakeups(ctx, queue)
  local bells = ctx.result.bells
  if bells then bells.new[queue], bells.left[queue] = nil, nil end
end

-- Returns the code of a put: negative if the producer rings the bell of the queue.
function Rings.with_bell(ctx, code)
  return ctx.result.bells and -code or code
end

-- Returns what the caller sends of the rings, or nil if the installation has one partition. It has these fields:
-- - floors: by queue, the virtual time of the worker
-- - tills: by queue, {start, rank} behind which the claim takes nothing
-- - is_woken: the claim follows a wake-up, or a look after its time
function Rings.read(sent, queues, ctx)
  local ring = sent and sent.ring
  if not ring then return nil end
  if ring.is_woken then
    for index = 1, #queues do
      redis.call("DEL", ctx.prefix .. Keys.WAKEUP .. queues[index], ctx.prefix .. Keys.WAKEUP_LEFTOVER .. queues[index])
    end
  end
  for queue, floor in pairs(ring.floors) do Rings.raise(ctx, queue, floor) end
  return ring
end

-- No turn is left in a ring.
function Rings.note_idle(ctx, queue)
  redis.call("HSET", ctx.prefix .. Keys.VIRTUAL_TIMES, "idle " .. queue, 1)
end

-- Moves the virtual time of a ring that had no turn left on.
function Rings.raise(ctx, queue, floor)
  local times = ctx.prefix .. Keys.VIRTUAL_TIMES
  local is_idle, virtual = unpack(redis.call("HMGET", times, "idle " .. queue, "queue " .. queue))
  if not is_idle then return end
  redis.call("HDEL", times, "idle " .. queue)
  if floor <= tonumber(virtual or 0) then return end
  redis.call("HSET", times, "queue " .. queue, string.format("%.17g", floor))
  local debts = ctx.prefix .. Keys.DEBTS .. queue
  local passed = redis.call("ZRANGEBYSCORE", debts, "-inf", floor, "LIMIT", 0, CLEAR_AT_MOST)
  if #passed > 0 then redis.call("ZREM", debts, unpack(passed)) end
end

-- Returns whether a found turn comes after the turn of another ring.
function Rings.is_behind(ctx, ring, found, by_rank)
  local till = ring.tills[found.queue]
  if not till then return false end
  local rank = by_rank and Lanes.rank_in(ctx, Lanes.order_name(found.key, found.group, found.queue), found.lane)
  if rank and rank ~= till[2] then return rank < till[2] end
  return found.start > till[1]
end

-- Returns the first turn of a ring, {start, rank}, or nil if nothing in it may start.
local function first_of(ctx, queue, by_rank, rules)
  local member = Active.member_at(ctx, queue, 0, by_rank)
  if member[1] then return {member[2], member[3] or ""} end
  if rules.limited and redis.call("ZCOUNT", ctx.prefix .. Keys.AVAILABLE .. queue, 0, "+inf") > 0 then
    return {string.format("%.17g", Active.virtual_time(ctx, queue)), ""}
  end
end

-- Returns the state of the rings after a claim, as JSON. By queue it has the virtual time and the first turn. A ring
-- without a first turn has its last debt. The caller requests permits of the keys in `requests`.
function Rings.answer(ctx, queues, ranked, places, rules)
  local rings = {}
  for index = 1, #queues do
    local queue = queues[index]
    local first = first_of(ctx, queue, ranked[queue], rules)
    if not first then Rings.note_idle(ctx, queue) end
    local debt = not first and redis.call("ZRANGE", ctx.prefix .. Keys.DEBTS .. queue, -1, -1, "WITHSCORES")[2] or nil
    rings[queue] = {at = string.format("%.17g", Active.virtual_time(ctx, queue)), first = first, debt = debt}
  end
  local answer = {rings = rings, places = places, requests = ctx.result.requests}
  Rings.add_bells(ctx, answer)
  return cjson.encode(answer)
end

-- Adds the queues whose bells the caller rings to an answer.
function Rings.add_bells(ctx, answer)
  local bells = ctx.result.bells or {new = {}, left = {}}
  for _, kind in ipairs({"new", "left"}) do
    local queues = {}
    for queue in pairs(bells[kind]) do queues[#queues + 1] = queue end
    answer[kind] = #queues > 0 and queues or nil
  end
end
