--[[
  permits: how many slots of a key a partition may take, if other partitions have tasks of the key too (ADR 30).

  The concurrency of such a key holds for all partitions together. A permit is one slot. The home of the key grants the
  permits (grants.lua), and a partition starts a task only if it has a permit for each slot. Servers do not call each other.
  A worker carries three messages: `request` at the partition, `grant` at the home, and `accept` at the partition.

  `virtual_times` has by `permits KEY` a JSON object with these fields:
  - n, until, run         the permits. They are valid until the time `until` of the server `run` (Clock.server_id)
  - seen                  the time of the last request or answer. If the clock is behind it, the permits are void
  - number, stamp         of the last request. The stamp is its time, and goes when its answer comes
  - stamped               the logical time of the last request
  - owed, owed_at         permits that go back to the home, and the logical time from which they do
  - ended                 true if a task has ended since the last permits came
  - request_at, renew_at  logical times of the next request: not before request_at if tasks wait, and at renew_at otherwise
  - need, most            the slots of the last task that found too few permits, and the concurrency that it found
  - lot and others        what the partition may start of a rate (lots.lua)
  - home, home_until      the epoch of a home that has counted the permits. No older home is accepted until `home_until`

  `timers` has `permits KEY` with the logical time at which a call looks whether permits are to be requested.

  Rules, each of which the search in tests/reference/permits.py leaves out:
  1. Permits live for a lease from the stamp, so a late answer makes them shorter.
  2. A permit that goes back starts no task from the request on.
  3. A partition accepts only the answer to its last request, and only on the same server.
  4. A server has no permits that another server was granted.
  5. A partition that was counted accepts nothing from an older home.
  6. A home counts only if no older home goes on.
]]

-- If the worker to which a claim named a key makes no request, a claim names the key to another one after this time.
local NAME_AGAIN_MS = 200
-- After a request the home sends a worker to the partition as soon as a permit is free. A message may be lost, so claims name
-- the key again after this time.
local REQUEST_AGAIN_MS = 1000
-- A permit that others want goes back after this time, although it has started no task.
local UNUSED_MS = 1000
-- While tasks wait, workers make a request more often than this.
local SERVED_MS = 15000
-- The tenants of this many places, and of this many groups at each, count.
local PLACES_AT_MOST = 8
-- Returns for how long the home counts a permit beyond its life. It covers one step of a clock, and the time for which a
-- replaced server goes on.
function Permits.margin_ms(lease_ms)
  return math.floor(lease_ms / 3) + 2000
end

-- Returns whether no older server goes on that had this memory before. `epoch` is that of the memory here.
function Permits.is_settled(ctx, epoch, lease_ms, rules)
  local began = tonumber(redis.call("HGET", ctx.prefix .. Keys.CLOCK, "began"))
  return epoch == began or rules.now - epoch >= Permits.margin_ms(lease_ms)
end

-- Returns the object of a key, an empty one if there is none.
-- One call reads it once.
function Permits.read(ctx, key)
  local known = ctx.memo.of_partition or {}
  ctx.memo.of_partition = known
  if not known[key] then
    local text = redis.call("HGET", ctx.prefix .. Keys.VIRTUAL_TIMES, "permits " .. key)
    known[key] = text and cjson.decode(text) or {}
  end
  return known[key]
end

function Permits.write(ctx, key, its)
  redis.call("HSET", ctx.prefix .. Keys.VIRTUAL_TIMES, "permits " .. key, cjson.encode(its))
end

-- A call looks at a key at a logical time, or before.
local function look_at(ctx, key, at)
  redis.call("ZADD", ctx.prefix .. Keys.TIMERS, "LT", Rates.int_text(at), "permits " .. key)
end

-- Returns the name of this server (Clock.server_id), which a call reads once.
function Permits.run_of(ctx)
  ctx.memo.run = ctx.memo.run or Clock.server_id()
  return ctx.memo.run
end

-- Returns how many permits are valid now.
function Permits.valid(ctx, its, rules)
  local is_valid = its.run and its.run == Permits.run_of(ctx) and (its.seen or 0) <= rules.now
    and rules.now < (its["until"] or 0)
  return is_valid and its.n or 0
end

-- Returns whether a key is that of a queue all of whose tasks wait for other keys. Permits or a lot would start none of them.
function Permits.is_idle(ctx, key)
  local queue = Config.queue_of_whole(ctx, key)
  return queue and not Active.may_start(ctx, queue)
end

-- Returns the logical time from which permits that the partition owes go back. Each has started a task before, unless no
-- worker was there.
local function owed_at(ctx, key, its)
  local is_used = not its.ended and not Permits.is_idle(ctx, key)
  return its.owed_at + (is_used and UNUSED_MS or 0)
end

-- Returns how many permits go back, and start no task.
local function owed_now(ctx, key, its, rules)
  return (its.owed or 0) > 0 and owed_at(ctx, key, its) <= rules.logical and its.owed or 0
end

-- Returns how many of the valid permits of a key start tasks.
function Permits.startable(ctx, key, its, rules)
  return math.max(0, Permits.valid(ctx, its, rules) - owed_now(ctx, key, its, rules))
end

-- Returns whether the slots of a limit are permits. Those of a private key are not, because its tenant is in this partition.
function Permits.bound(ctx, limit)
  return limit.concurrency and limit.concurrency > 0 and not limit.private and Rings.is_partition(ctx)
end

-- Returns the numbers that a key has in this partition by its queue and by people, as a text. Two partitions with the same
-- text start its tasks by the same rule.
function Permits.numbers_here(ctx, key, rules)
  local limit = Numbers.set({key = key, is_bare = true}, "")
  if Config.is_of_queue(key) then Config.use_queue_numbers(ctx, limit) end
  local other = Config.has_overrides(ctx) and Config.override_of_limit(ctx, limit, rules)
  return Numbers.write(limit) .. "|" .. (other and other.numbers or "")
end

-- Returns whether the permits or the lot of a key decide in this call. A name of a limit lacks the flag of a private key, but
-- no call has requested such a key. A call that only looks (`rules.is_look`) leaves them out if no worker has made a request
-- for some time. Otherwise nothing could start without a worker, and no scaler would start the first one.
function Permits.decide(limit, its, rules)
  if rules.is_look then return its.seen ~= nil and rules.now - its.seen < SERVED_MS end
  return limit.on_limit ~= "" or its.request_at ~= nil
end

-- Returns the first part of the place of a limit in the order of in_order. Several slots come last, because tasks wait there
-- last too (Limits.check).
local function rank_of(limit)
  return limit.permits and (limit.slots and 2 or 1) or 0
end

-- Returns the limits of a task in the order in which it requests permits, one key after the other. All partitions have the
-- same order of keys. Otherwise two tasks of the same two keys would each have the permit for which the other one waits.
-- Limits without permits come first, so that no permit waits for them.
function Permits.in_order(limits)
  local bound, order, place = 0, {}, {}
  for index = 1, #limits do
    if limits[index].permits then bound = bound + 1 end
  end
  if bound < 2 then return limits end
  for index = 1, #limits do order[index], place[limits[index]] = limits[index], index end
  table.sort(order, function(one, other)
    if rank_of(one) ~= rank_of(other) then return rank_of(one) < rank_of(other) end
    if one.permits and one.key ~= other.key then return one.key < other.key end
    return place[one] < place[other]
  end)
  return order
end

-- Gives a limit the number of permits that start tasks.
function Permits.set(ctx, limit, rules)
  if not Permits.bound(ctx, limit) then return end
  local its = Permits.read(ctx, limit.key)
  if not Permits.decide(limit, its, rules) then return end
  limit.permits, limit.its = Permits.startable(ctx, limit.key, its, rules), its
end

-- Names a key to the caller, which requests permits of it. If it is too early for that, a look comes at its time.
function Permits.name_key(ctx, key, its, rules, is_early)
  if not is_early then
    its.request_at = rules.logical + NAME_AGAIN_MS
    ctx.result.requests = ctx.result.requests or {}
    table.insert(ctx.result.requests, key)
  end
  look_at(ctx, key, its.request_at)
  Permits.write(ctx, key, its)
end

-- A task waits for a partition of its queue. The queue may be left with permits that it does not use.
local function look_at_whole(ctx, key)
  local row = Config.row_of_key(ctx, key)
  local its = row and Permits.read(ctx, row.key)
  if its and (its.owed or 0) > 0 then look_at(ctx, row.key, its.owed_at) end
end

-- A claim has found too few permits for a task. Its slots are noted even before the time of the next request. Otherwise a
-- partition that had enough for a smaller task would request no more.
function Permits.note_short(ctx, limit, rules)
  local its, key, need = limit.its, limit.key, Slots.of_task(limit)
  if Permits.is_idle(ctx, key) then return end
  if limit.of_queue then look_at_whole(ctx, key) end
  -- If all slots are taken here, no permit would help.
  if Slots.held(ctx, key) + need > limit.concurrency then return end
  local is_early = rules.logical < (its.request_at or 0)
  if is_early and its.need == need and its.most == limit.concurrency then return end
  its.need, its.most = need, limit.concurrency
  Permits.name_key(ctx, key, its, rules, is_early)
end

-- A call looks at a key that it has changed as soon as one comes.
function Permits.look_soon(ctx, key, its, rules)
  Permits.write(ctx, key, its)
  look_at(ctx, key, rules.logical)
end

-- Leases of these keys have ended, so permits that the partition owes may go back.
function Permits.note_freed(ctx, keys, rules)
  for index = 1, Rings.is_partition(ctx) and #keys or 0 do
    local its = Permits.read(ctx, keys[index])
    if (its.owed or 0) > 0 then
      its.ended = true
      Permits.look_soon(ctx, keys[index], its, rules)
    end
  end
end

-- Returns whether tasks wait for a key itself, and not for the tier of their tenant or for another key. The limit of a
-- queue as a whole blocks none of them, so they wait in the queue.
local function waits(ctx, key)
  local queue = Config.queue_of_whole(ctx, key)
  if queue then return Active.may_start(ctx, queue) end
  return redis.call("EXISTS", ctx.prefix .. Keys.WAITERS .. key) == 1
end

-- Returns how many tasks wait at a key, if some wait.
local function count_waiting(ctx, key)
  local queue = Config.queue_of_whole(ctx, key)
  local counts = queue and Keys.WAITING or Keys.WAITING_AT
  return tonumber(redis.call("HGET", ctx.prefix .. counts, queue or key) or 1)
end

-- Returns the logical time of the next request for a key, or nil if it has neither permits nor tasks.
local function request_time(ctx, key, its, rules)
  local n, held, at = Permits.valid(ctx, its, rules), Slots.count(ctx, key), math.huge
  if n > 0 or held > 0 and (its.most or not its.asked) then at = its.renew_at or rules.logical end
  if (its.owed or 0) > 0 and n > held then at = math.min(at, owed_at(ctx, key, its)) end
  local wanted = held + (its.need or 1)
  if wanted > Permits.startable(ctx, key, its, rules) and wanted <= (its.most or its.own or 0) and waits(ctx, key) then
    at = math.min(at, its.request_at or 0)
  end
  at = math.min(at, Lots.request_time(ctx, its, rules, waits(ctx, key)) or at)
  return at < math.huge and at or nil
end

-- A worker runs tasks with the keys from an index on. If they started before the key had a concurrency, the home does not know of them, so
-- the caller requests permits. Keys that are not of queues have a concurrency with their first task.
function Permits.look_at_held(ctx, keys, first, rules)
  for index = first, #keys do
    local key = keys[index]
    if Config.is_of_queue(key) and not next(Permits.read(ctx, key)) then
      local limit = Limits.limit_now(ctx, key .. "|q|w", rules)
      if Permits.bound(ctx, limit) and Slots.count(ctx, key) > 0 then
        Permits.name_key(ctx, key, limit.its, rules)
      end
    end
  end
end

-- The time of a key has come. The call names it to its caller, or forgets it.
function Permits.look(ctx, key, rules)
  local its = Permits.read(ctx, key)
  local at = request_time(ctx, key, its, rules)
  if at and at <= rules.logical then
    Permits.name_key(ctx, key, its, rules)
  elseif at or (its.home_until or 0) > rules.logical then
    look_at(ctx, key, at or its.home_until)
  elseif its.asked and Slots.count(ctx, key) > 0 then
    -- A body may report other units, which the home learns of by this object.
    look_at(ctx, key, rules.logical + rules.lease_ms)
  else
    redis.call("HDEL", ctx.prefix .. Keys.VIRTUAL_TIMES, "permits " .. key)
    ctx.memo.of_partition[key] = nil
  end
end

-- Returns how many tenants wait at a key, at most those of a bounded number of groups.
local function tenants_waiting(ctx, key)
  local queue = Config.queue_of_whole(ctx, key)
  if queue then return math.max(1, redis.call("ZCARD", ctx.prefix .. Keys.ACTIVE .. queue)) end
  local places, count = redis.call("LRANGE", ctx.prefix .. Keys.WAITERS .. key, 0, PLACES_AT_MOST - 1), 0
  for index = 1, #places do
    local queue = string.match(places[index], "^%S+ (.*)$")
    local groups = redis.call("ZRANGE", ctx.prefix .. Keys.GROUPS_AT .. places[index], 0, PLACES_AT_MOST - 1)
    for each = 1, #groups do count = count + redis.call("ZCARD", ctx.prefix .. Keys.GROUP .. groups[each] .. " " .. queue) end
  end
  return math.max(1, count)
end

-- Requests permits of a key. Returns the report for the home. A permit that goes back starts no task from now on. A counted
-- partition gets the epoch of the home that counts (`home`).
function Permits.request(ctx, key, rules, home)
  local its, run, logical = Permits.read(ctx, key), Permits.run_of(ctx), rules.logical
  local n, held = Permits.valid(ctx, its, rules), Slots.count(ctx, key)
  local tasks = waits(ctx, key) and count_waiting(ctx, key) or 0
  local waiting = tasks > 0 and math.max(its.need or 1, tasks) or 0
  local returns = math.max(0, math.min(math.max(owed_now(ctx, key, its, rules), n - held - waiting), n - held))
  if its.run ~= run then Lots.forget(its) end
  its.n = n - returns
  its["until"], its.run, its.seen, its.stamp = its.n > 0 and its["until"] or 0, run, rules.now, rules.now
  its.stamped = logical
  -- The number grows although the object may be new.
  its.number = math.max((its.number or 0) + 1, rules.now)
  its.owed, its.owed_at = math.min(its.n, math.max(0, (its.owed or 0) - returns)), its.owed_at or logical
  its.renew_at = logical + math.floor(rules.lease_ms / 3)
  -- The home sends no worker to a partition that has reported no task.
  its.request_at = waiting > 0 and logical + REQUEST_AGAIN_MS or nil
  if home then
    its.home, its.home_until = math.max(home, its.home or 0), logical + Permits.margin_ms(rules.lease_ms)
  end
  local lot = Lots.report(ctx, key, its, rules, tasks, home)
  Permits.write(ctx, key, its)
  look_at(ctx, key, logical + REQUEST_AGAIN_MS)
  -- A counted partition may have no limit. Without this it would keep the object of each counted key for ever.
  Clock.note_limited(ctx, rules)
  local own, since = Config.declared_of(ctx, key)
  if own == "" then own = its.asked or its.most and "C" .. Rates.int_text(its.most) or nil end
  return {run = run, number = its.number, n = its.n, held = held, demand = held + waiting, need = its.need or 1,
    tenants = waiting > 0 and tenants_waiting(ctx, key) or 1, own = own, since = since,
    numbers = Permits.numbers_here(ctx, key, rules), lot = lot}
end

-- Accepts the answer of a home to the last request. Returns whether it was accepted.
function Permits.accept(ctx, key, answer, rules)
  local its, logical = Permits.read(ctx, key), rules.logical
  local is_last = its.run == answer.run and its.run == Permits.run_of(ctx) and its.number == answer.number and its.stamp
  if not is_last or rules.now < its.stamp then return false end
  if its.home and answer.home < its.home and logical < its.home_until then return false end
  local n, stamp = its.n + answer.added, its.stamp
  its.n, its["until"], its.seen, its.stamp = n, stamp + rules.lease_ms, rules.now, nil
  its.owed, its.owed_at = math.min(n, answer.owed), logical + answer.turn_ms
  if answer.added > 0 then its.ended = nil end
  Lots.accept(its, answer, rules, stamp)
  Permits.write(ctx, key, its)
  look_at(ctx, key, request_time(ctx, key, its, rules) or its.renew_at)
  -- Limits may have closed while permits were void, which are valid again although none was added.
  if answer.lot or Permits.startable(ctx, key, its, rules) > Slots.count(ctx, key) then Wake.wake_waiters(ctx, key, rules) end
  return true
end
