--[[
  gate_bell: a bell that wakes a sleeping worker, which then looks whether parked tasks may start.
]]

function Parked.ring_gate(ctx)
  if redis.call("LLEN", ctx.prefix .. "gate_bell") == 0 then redis.call("RPUSH", ctx.prefix .. "gate_bell", 1) end
end

--[[
  gate_places: the places at which parked tasks wait.

  A place is a limit without the size of its numbers, like the name of a limit. A tenant's tier is a place too,
  and the key alone names it.

  - `gate_places:KEY` stores the places of a key. If there are more places than one call looks at, each has the
    logical time of its last look.
  - `gate_looks` stores when a call looks at a key.
  - `gate_waiting` stores how many tasks wait at a key.

  A task that must not start yet keeps back the tasks of its place, and no others. A task that declares another
  kind of number, or 0, waits at another place.
]]

-- Returns all places at which a task may wait.
function Parked.parked_places(key, words)
  local places = {key ~= "" and key or nil}
  for word in string.gmatch(words, "[^,]+") do
    places[#places + 1] = Limits.name_of(word)
  end
  return places
end

-- Makes a call look at a key at a logical time, or before.
function Parked.look_at_gate(ctx, key, at)
  local known = redis.call("ZSCORE", ctx.prefix .. "gate_looks", key)
  if known and tonumber(known) <= at then return end
  redis.call("ZADD", ctx.prefix .. "gate_looks", Rates.whole(at), key)
end

-- Makes a call look now at the keys of leases that have ended. Each lease comes as its keys.
function Parked.look_at_freed(ctx, ended, rules)
  local wakes = false
  for index = 1, #ended do
    for key in string.gmatch(ended[index], "[^,]+") do
      wakes = redis.call("ZADD", ctx.prefix .. "gate_looks", "XX", "LT", "CH", Rates.whole(rules.logical), key) == 1 or wakes
    end
  end
  if wakes then Parked.ring_gate(ctx) end
end

-- Lets a task wait at a place, and makes a call look at its key at the time `at`.
function Parked.wait_at(ctx, task, tag, place, at)
  local tenant, key = Events.tenant_of(task.key), Parked.key_of_place(place)
  local _, first = Parked.first_at(ctx, tenant, place)
  if not first then redis.call("ZADD", ctx.prefix .. "gate_places:" .. key, "NX", 0, place) end
  if not first or tonumber(task.seq) < tonumber(first) then
    redis.call("HSETNX", ctx.prefix .. "gate_virtual", key, 0)
    local start = first and Parked.take_turn(ctx, tenant, first, place)
      or Parked.next_start(ctx, key, tenant, redis.call("HGET", ctx.prefix .. "gate_virtual", key))
    redis.call("ZADD", ctx.prefix .. "gate_turns:" .. place, start, Parked.turn_name(tenant, task.seq))
  end
  local waits = redis.call("ZADD", ctx.prefix .. "gate_at:" .. tenant .. " " .. place, task.seq, tag)
  redis.call("HINCRBY", ctx.prefix .. "gate_waiting", key, waits)
  Parked.look_at_gate(ctx, key, at)
end

-- Forgets a place at which no task waits any more.
function Parked.forget_empty(ctx, place)
  local key = Parked.key_of_place(place)
  if redis.call("EXISTS", ctx.prefix .. "gate_turns:" .. place) == 1 then return end
  redis.call("ZREM", ctx.prefix .. "gate_places:" .. key, place)
  if redis.call("EXISTS", ctx.prefix .. "gate_places:" .. key) == 1 then return end
  redis.call("HDEL", ctx.prefix .. "gate_waiting", key)
  redis.call("HDEL", ctx.prefix .. "gate_virtual", key)
  redis.call("UNLINK", ctx.prefix .. "gate_finish:" .. key)
end

function Parked.leave_place(ctx, tenant, tag, place)
  local head, seq = Parked.first_at(ctx, tenant, place)
  if redis.call("ZREM", ctx.prefix .. "gate_at:" .. tenant .. " " .. place, tag) == 0 then return end
  redis.call("HINCRBY", ctx.prefix .. "gate_waiting", Parked.key_of_place(place), -1)
  if head ~= tag then return end
  local start = Parked.take_turn(ctx, tenant, seq, place)
  local _, first = Parked.first_at(ctx, tenant, place)
  if first then
    redis.call("ZADD", ctx.prefix .. "gate_turns:" .. place, start or 0, Parked.turn_name(tenant, first))
  else
    Parked.forget_empty(ctx, place)
  end
end

-- Returns the places of a key at which no call has looked since it was due, and whether there are more of
-- them.
function Parked.heads_of(ctx, key, since, logical)
  local name, heads = ctx.prefix .. "gate_places:" .. key, {}
  local places = redis.call(
    "ZRANGEBYSCORE", name, "-inf", "+inf", "WITHSCORES", "LIMIT", 0, Parked.PLACES_AT_MOST + 1)
  local next_look = tonumber(places[2 * Parked.PLACES_AT_MOST + 2])
  for index = 1, Parked.PLACES_AT_MOST do
    local place = places[2 * index - 1]
    heads[index] = place and {place = place}
    if next_look then redis.call("ZADD", name, Rates.whole(logical), place) end
  end
  return heads, next_look and next_look <= since
end

-- Returns the first task of the tenant whose turn it is, over all places that are not closed. Returns nil if
-- there is none. It reads every turn anew, because a start may have moved the others.
function Parked.first_head(ctx, heads)
  local first
  for index = 1, #heads do
    local head = heads[index]
    local turn = not head.closed and redis.call("ZRANGE", ctx.prefix .. "gate_turns:" .. head.place, 0, 0, "WITHSCORES")
    if turn and turn[1] then
      local seq, tenant = string.match(turn[1], "^(%d+) (.*)$")
      head.turn, head.start, head.seq, head.tenant = turn[1], tonumber(turn[2]), tonumber(seq), tenant
      if not first or head.start < first.start or head.start == first.start and head.seq < first.seq then
        first = head
      end
    end
  end
  if not first then return nil end
  first.tag = Parked.first_at(ctx, first.tenant, first.place)
  -- Somebody has deleted the tasks of the tenant.
  if not first.tag then
    redis.call("ZREM", ctx.prefix .. "gate_turns:" .. first.place, first.turn)
    Parked.forget_empty(ctx, first.place)
  end
  return first
end

--[[
  gate_turns: the order of the tenants that have parked tasks at a place.

  - `gate_at:TENANT PLACE` stores the tasks of a tenant at a place in the order of SEQ.
  - `gate_turns:PLACE` stores the tenants of a place in the order of the key's own virtual time
    (`gate_virtual`). If two tenants are equal, the tenant whose first task waits longest goes first. Its name
    there begins with the SEQ of that task.
  - `gate_finish:KEY` stores the tenants that are ahead of that virtual time.

  A tenant begins to wait at the larger of its own finish and the key's virtual time. A tenant gets no credit
  for its absence, and no debt is forgiven.

  A task that a worker gets to publish again charges its tenant one divided by the tenant's weight. The charge
  applies at every key of the task at which any task waits. If no task waits at a key, its virtual time begins
  anew.
]]

-- One call looks at no more than 8 places of a key, and the next call looks at the others.
Parked.PLACES_AT_MOST = 8
-- One start clears away at most 4 debts.
local CLEAR_DEBTS_AT_MOST = 4

function Parked.key_of_place(place)
  return string.match(place, "^[^|]*")
end

-- Returns the name of a tenant among those of a place, which begins with its first task.
function Parked.turn_name(tenant, seq)
  return string.format("%016.0f %s", seq, tenant)
end

function Parked.next_start(ctx, key, tenant, virtual)
  local finish = redis.call("ZSCORE", ctx.prefix .. "gate_finish:" .. key, tenant)
  -- Somebody may have deleted the virtual time of the key.
  return math.max(tonumber(finish or 0), tonumber(virtual or 0))
end

function Parked.first_at(ctx, tenant, place)
  local row = redis.call("ZRANGE", ctx.prefix .. "gate_at:" .. tenant .. " " .. place, 0, 0, "WITHSCORES")
  return row[1], row[2]
end

-- Removes a tenant from a place by its first task. Returns its start, or nil if somebody has deleted it.
function Parked.take_turn(ctx, tenant, seq, place)
  local turns, name = ctx.prefix .. "gate_turns:" .. place, Parked.turn_name(tenant, seq)
  local start = redis.call("ZSCORE", turns, name)
  redis.call("ZREM", turns, name)
  return tonumber(start)
end

function Parked.move_turn(ctx, tenant, place, start)
  local _, first = Parked.first_at(ctx, tenant, place)
  if first then redis.call("ZADD", ctx.prefix .. "gate_turns:" .. place, "XX", start, Parked.turn_name(tenant, first)) end
end

-- Charges a tenant at a key. Returns when the tenant is due next, or nil if no task waits at the key.
function Parked.charge_turn(ctx, key, tenant, weight)
  local virtual = redis.call("HGET", ctx.prefix .. "gate_virtual", key)
  if not virtual then return end
  local debts, start = ctx.prefix .. "gate_finish:" .. key, Parked.next_start(ctx, key, tenant, virtual)
  local finish = start + 1 / weight
  redis.call("HSET", ctx.prefix .. "gate_virtual", key, start)
  redis.call("ZADD", debts, finish, tenant)
  local passed = redis.call("ZRANGEBYSCORE", debts, "-inf", start, "LIMIT", 0, CLEAR_DEBTS_AT_MOST)
  if #passed > 0 then redis.call("ZREM", debts, unpack(passed)) end
  -- The tenant moves only at the 8 places with the latest looks, so that more places cost no more.
  local places = redis.call("ZRANGE", ctx.prefix .. "gate_places:" .. key, 0, 7, "REV")
  for index = 1, #places do Parked.move_turn(ctx, tenant, places[index], finish) end
  return finish
end

-- Charges the tenant of a task that a worker gets to publish again, at each key of `places`.
function Parked.charge_turns(ctx, tenant, places, weight)
  local finish = {}
  for index = 1, #places do
    local key = Parked.key_of_place(places[index])
    finish[key] = finish[key] or Parked.charge_turn(ctx, key, tenant, weight)
    if finish[key] then Parked.move_turn(ctx, tenant, places[index], finish[key]) end
  end
end

-- Returns another place of a task that may start, at which it is another tenant's turn. Returns nil if there
-- is none.
function Parked.others_turn(ctx, task, places, at)
  local tenant = Events.tenant_of(task.key)
  for index = 1, #places do
    local place, key = places[index], Parked.key_of_place(places[index])
    local first = redis.call("ZRANGE", ctx.prefix .. "gate_turns:" .. place, 0, 0, "WITHSCORES")
    local seq, other = string.match(first[1] or "", "^(%d+) (.*)$")
    if other and other ~= tenant and place ~= at then
      local start = Parked.next_start(ctx, key, tenant, redis.call("HGET", ctx.prefix .. "gate_virtual", key))
      local due = tonumber(first[2])
      if due < start or due == start and tonumber(seq) < tonumber(task.seq) then return place end
    end
  end
end

--[[
  gate_parked: tasks that a gate rejected and that wait here until their limits open.

  `gate_tasks` stores a record of each task: SEQ EXPIRES_MS KEY TENANT_KEY TIER CONCURRENCY LIMITS TOLD ID, the end
  of a line, and the message. No function reads the message of a task that may start.

  - SEQ is the place of the task in the order in which the tasks began to wait.
  - EXPIRES_MS is "" if the task does not expire.
  - KEY is the key of its tenant's tier, or "" for a system task.
  - TOLD stays here because a task may wait for longer than the server remembers its copies.

  A task waits at one of its places (gate_places), or it was promoted (`gate_promoted`). A worker got the
  promoted task and publishes it again. The task was promised one start of each of its limits (`gate_promised`).
  The promise holds until the task comes to a gate, or until the promise ends.

  All parked tasks came from one broker and go back there. The clock's `parked` is the name of that broker, and
  1 stands for any broker.
]]

-- Returns whether a worker that publishes to a broker may get the parked tasks, and may park its own beside
-- them.
function Parked.is_of_broker(said, broker)
  return not said.parked or said.parked == "1" or broker == "" or said.parked == broker
end

function Parked.read_parked(record)
  local seq, expires, key, tenant_key, tier, concurrency, words, told, id =
    string.match(record, "^(%d+) (%d*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ \n]*)\n")
  return {seq = seq, expires = expires, key = key, tenant_key = tenant_key, tier = tier,
    concurrency = concurrency, words = words, told = told, id = id}
end

-- Lets two copies of a parked message run: the last one that was published, and the next.
function Parked.copy_parked(ctx, tag, current, next_serial, seq, told, keep_ms)
  local copy = ctx.prefix .. "copy:" .. tag
  redis.call("HDEL", copy, "admitted")
  redis.call("HSET", copy, "current", current, "next", next_serial, "seq", seq, "told", told)
  redis.call("PEXPIRE", copy, keep_ms)
end

-- Promises a task one start of each of its limits, for the time of a lease.
function Parked.promise_starts(ctx, tag, key, words, rules, lease_ms, keep_ms)
  local places = Parked.parked_places(key, words)
  for index = 1, #places do
    local promises = ctx.prefix .. "gate_promised:" .. Parked.key_of_place(places[index])
    redis.call("ZREMRANGEBYSCORE", promises, "-inf", Rates.whole(rules.logical))
    redis.call("ZADD", promises, Rates.whole(rules.logical + lease_ms), tag)
    redis.call("PEXPIRE", promises, keep_ms)
  end
end

-- Removes a task from every place, and takes back its promises. A copy that comes to a gate may have other
-- limits, or another tenant, than the copy that was parked.
function Parked.leave_gate(ctx, key, tag, places)
  local record = redis.call("HGET", ctx.prefix .. "gate_tasks", tag)
  if record then
    local task = Parked.read_parked(record)
    key, places = task.key, Parked.parked_places(task.key, task.words)
  end
  for index = 1, #places do
    Parked.leave_place(ctx, Events.tenant_of(key), tag, places[index])
    redis.call("ZREM", ctx.prefix .. "gate_promised:" .. Parked.key_of_place(places[index]), tag)
  end
end

-- Returns whether any task is parked. If none is, no call looks for parked tasks any more.
function Parked.still_parked(ctx)
  if redis.call("EXISTS", ctx.prefix .. "gate_tasks", ctx.prefix .. "gate_promoted") > 0 then return true end
  redis.call("HDEL", ctx.prefix .. "clock", "parked")
  redis.call("UNLINK", ctx.prefix .. "gate_bell", ctx.prefix .. "gate_looks")
  return false
end

-- Removes the record of a task, which counted at each key of the task. Returns how many records there were.
function Parked.forget_record(ctx, tag)
  local record = redis.call("HGET", ctx.prefix .. "gate_tasks", tag)
  if not record then return 0 end
  local task = Parked.read_parked(record)
  Limits.count_waiting(ctx, Tasks.keys_of(task.key, task.words), -1)
  Tasks.remove_id(ctx, task.id, tag)
  return redis.call("HDEL", ctx.prefix .. "gate_tasks", tag)
end

-- Forgets a task that is on its broker again, or that exists nowhere any more.
function Parked.forget_parked(ctx, key, tag, places)
  Parked.leave_gate(ctx, key, tag, places)
  redis.call("ZREM", ctx.prefix .. "gate_promoted", tag)
  redis.call("ZREM", ctx.prefix .. "gate_expires", tag)
  local known = Parked.forget_record(ctx, tag)
  Parked.still_parked(ctx)
  return known
end

-- Returns the first limit at whose place other tasks of a gate wait already, or nil if there is none. The
-- limit must let the tasks wait that it rejects. The tier's limit comes first, and only its key is returned.
function Parked.queue_of_gate(ctx, key, limits)
  if key ~= "" and redis.call("EXISTS", ctx.prefix .. "gate_turns:" .. key) == 1 then return {key = key} end
  for index = 1, #limits do
    local limit = limits[index]
    if limit.on_limit == "w" and redis.call("EXISTS", ctx.prefix .. "gate_turns:" .. limit.name) == 1 then
      return limit
    end
  end
end

--[[
  gate_kept: the limits that keep a task of a gate from starting now.
]]

-- Returns how many tasks the tenant of a parked task may run now, and its weight. The number -1 stands for
-- any number.
function Parked.entitled(ctx, task, rules)
  if task.key == "" then return -1, 1 end
  local _, most, weight = Config.entitlement(ctx.prefix .. "tiers", ctx.prefix .. task.tenant_key, task.tier,
    task.concurrency, rules.default_tier, rules.default_limit, {})
  return most, weight
end

-- Returns three results:
-- - the place at which a task waits, or nil if all limits let it through
-- - the time for which that place is closed
-- - whether a limit without "wait" rejects the task
function Parked.kept_by(ctx, task, limits, rules)
  local at, closed_ms, others = nil, 0, false
  if rules.tier_waits and task.key ~= "" then
    local most = Parked.entitled(ctx, task, rules)
    if rules.steered then
      most = Config.tenant_limit(ctx, task.key, string.match(task.tenant_key, ":(.*)$"), most, rules)
    end
    local held = Limits.held_of(ctx, task.key, rules)
    if most >= 0 and held + Limits.promised(ctx, task.key, rules) >= most then
      at, closed_ms = task.key, Limits.LOOK_AT_LIMIT_MS
    end
  end
  for index = 1, #limits do
    local limit = limits[index]
    local wait = Limits.wait_ms(ctx, limit, rules)
    if wait > 0 then
      if limit.on_limit ~= "w" and Config.stopped_ms(ctx, limit, rules) == 0 then
        others = true
      elseif not at then
        at, closed_ms = limit.name, wait
      end
    end
  end
  return at, closed_ms, others
end

--[[
  gate_ends: parked tasks that do not start, because people cancelled them or because they expired.

  An event reports the end once. From then on EXPIRES_MS in the record is 0. So every worker that gets the task
  ends it, even if it is the second worker.
]]

function Parked.tell_parked_end(ctx, tag, record, what)
  local seq, expires, rest, text = string.match(record, "^(%d+) (%d*) ([^\n]*\n(.*))$")
  if expires == "0" then return end
  Events.write_event_of(ctx, what, Parked.job_of(tag, text))
  redis.call("HSET", ctx.prefix .. "gate_tasks", tag, seq .. " 0 " .. rest)
end

-- Returns the id, the name and the queue of a parked task. The tag replaces an id that cannot be read.
function Parked.job_of(tag, text)
  local is_read, message = pcall(cjson.decode, text)
  message = is_read and type(message) == "table" and message or {}
  local headers = type(message.headers) == "table" and message.headers or {}
  local function text_of(value, other) return type(value) == "string" and value or other end
  return {id = text_of(headers.id, tag), name = text_of(headers.task, ""), queue = text_of(message.routing_key, "")}
end
