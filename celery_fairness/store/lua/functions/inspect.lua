--[[
  inspect: one snapshot of a key, by the rules of the next claim. The function writes nothing, so a replica can
  answer too. The clock is read and not moved on.

  args[1]  key           str  of a limit, of a queue, or of a tenant
  args[2]  tenant_key    str  of the tenant's record, without the prefix; "" if the key is no tenant's
  args[3]  lease_ms      int  how long a lease lives without a renewal
  args[4]  tier          str  the tenant's tier as the caller holds it
  args[5]  default_tier  str  for a tier that is not known
  args[6]  tiers         str  JSON: the concurrency (text) and the weight of each tier as the caller holds them
  args[7]  enforcement   str  "on", "observe" or "off"
  args[8]  limit         str  a limit of a task, whose numbers are shown; "" shows the numbers of the key
  args[9]  app           str  what the caller's app declares, CONCURRENCY|RATES|THROTTLE; "" is nothing
  args[10] first         int  index of the first lease, and of the first limit with waiting tasks
  args[11] frozen_ms     str  "" in production (server TIME); set only by tests

  Returns JSON. Times are in ms. A field without a value is left out. `celery_fairness/control/snapshot.py` reads
  it, and names what each field means.
]]
-- One page has at most 100 leases and 100 limits.
local PAGE = 100
-- One call looks at most at this many ended leases, and at this many queues of a tenant.
local ENDED_AT_MOST = 1000
local QUEUES_AT_MOST = 100
-- One call counts the tasks of at most 1000 lanes of a tenant. At the limits of a key it counts the tasks of at most
-- 200 lanes, and the tenants of at most 100 groups. Each of these takes some microseconds.
local LANES_AT_MOST = 1000
local COUNTED_AT_MOST = 200
local GROUPS_AT_MOST = 100

-- Returns an array that is an array in JSON too, even if it is empty.
local function list(items)
  return #items > 0 and items or nil
end

local function pairs_of(windows)
  local found = {}
  for starts, period_ms in Rates.windows_of(windows) do found[#found + 1] = {starts, period_ms} end
  return found
end

-- Returns numbers in the form of the answer.
local function numbers_of(limit)
  return {concurrency = limit.concurrency, rates = list(pairs_of(limit.rates)), throttle = pairs_of(limit.throttle)[1]}
end

-- Returns how many leases live, how many have ended and still stand in the table, and which these are.
local function count_leases(ctx, key, logical)
  local leases, gone, unswept = ctx.prefix .. Keys.LEASES .. key, {}, 0
  local held = redis.call("ZCARD", leases)
  local ended = held == 0 and {} or redis.call(
    "ZRANGEBYSCORE", ctx.prefix .. Keys.ENDS, "-inf", Rates.int_text(logical), "LIMIT", 0, ENDED_AT_MOST)
  local its = #ended > 0 and redis.call("ZMSCORE", leases, unpack(ended)) or {}
  for index = 1, #ended do
    if its[index] then gone[ended[index]], unswept = true, unswept + 1 end
  end
  return held - unswept, unswept, gone
end

-- Returns a lease with what its row has of its task.
local function lease_of(ctx, id, logical)
  local ends = redis.call("ZSCORE", ctx.prefix .. Keys.ENDS, id)
  local lease = {id = id, ends_ms = math.max(0, tonumber(ends or logical) - logical)}
  local row, tag = Tasks.read_running(ctx, id)
  local task = row and Tasks.read(ctx, tag)
  if task then
    lease.state, lease.queue = row.state, Tasks.shown_queue(task)
    lease.charged, lease.limits = task.key, task.limits
    lease.task_id = task.id ~= "" and task.id or tag
  elseif row then
    -- The broker has the copy of a promoted task.
    lease.state, lease.charged, lease.task_id = row.state, string.match(row.keys, "^[^,]+"), row.id ~= "" and row.id or tag
  else
    row = Tasks.read_held(ctx, id)
    if not row then return lease end
    lease.queue, lease.task_id, lease.limits = row.queue, row.id, row.charge
  end
  local at, usual = string.match(row.since, "^@(%d+)~?(%d*)")
  lease.owner, lease.task = row.owner ~= "-" and row.owner or "", row.name
  lease.held_ms, lease.usual_ms = math.max(0, logical - at), tonumber(usual)
  return lease
end

-- Returns a page of the leases that live, the oldest first.
local function leases_of(ctx, key, first, gone, logical)
  local shown, found = redis.call("ZRANGE", ctx.prefix .. Keys.LEASES .. key, first, first + PAGE - 1), {}
  for index = 1, #shown do
    if not gone[shown[index]] then found[#found + 1] = lease_of(ctx, shown[index], logical) end
  end
  return found
end

-- Returns the queue as people see it: parked tasks are in none.
local function shown_queue(queue)
  return Promotions.is_parked(queue) and "" or queue
end

-- Adds where the tasks of a tenant wait, how many they are, and whether claims pass the tenant over.
local function add_places(ctx, key, answer)
  local flat, left, queues = redis.call("HGETALL", ctx.prefix .. Keys.TENANT_STATE .. key), LANES_AT_MOST, {}
  for index = 1, #flat, 2 do
    local queue = string.match(flat[index], "^q:(.*)$")
    if queue then
      answer.waiting_count = answer.waiting_count + flat[index + 1]
      queues[#queues + 1] = queue
    end
    if flat[index] == "at_limit" then answer.at_limit = true end
  end
  table.sort(queues)
  local full, lanes = {}, {}
  for index = 1, math.min(#queues, QUEUES_AT_MOST) do
    local queue, ranks = queues[index], {}
    if redis.call("ZSCORE", ctx.prefix .. Keys.BLOCKED .. queue, key) then full[#full + 1] = shown_queue(queue) end
    local its = left > 0 and Lanes.all_of(ctx, key, queue, left) or {}
    for place = 1, math.min(#its, left) do
      local rank = string.sub(its[place], 1, 1)
      ranks[rank] = (ranks[rank] or 0) + Lanes.length_of(ctx, queue, key, its[place])
    end
    left = left - #its
    for rank = 9, 0, -1 do
      local tasks = ranks[tostring(rank)] or 0
      if tasks > 0 then lanes[#lanes + 1] = {shown_queue(queue), rank, tasks} end
    end
  end
  answer.full_in, answer.waiting = list(full), list(lanes)
  -- 0 means that a put has changed the tier since.
  local checked_by = tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.AT_LIMIT, key) or 0)
  if checked_by ~= 0 then answer.checked_by = math.abs(checked_by) - 1 end
end

-- Returns how many tenants wait in the groups of a limit, and how many tasks. Both stop to count when nothing of
-- `left` is left. Then the tenants are a lower bound, and the tasks are nil.
local function count_waiters(ctx, place, queue, left)
  local wait, tenants, tasks = ctx.prefix .. Keys.GROUPS_AT .. place, 0, 0
  local groups = left.groups > 0 and redis.call("ZRANGE", wait, 0, left.groups - 1) or {}
  left.groups = left.groups - #groups
  for index = 1, #groups do
    local name = ctx.prefix .. Keys.GROUP .. groups[index] .. " " .. queue
    local its = redis.call("ZRANGE", name, 0, math.max(0, left.lanes))
    if #its > left.lanes then
      tenants, tasks, its = tenants + redis.call("ZCARD", name), nil, {}
    end
    tenants = tenants + #its
    for member = 1, #its do
      local order = ctx.prefix .. Lanes.order_name(its[member], groups[index], queue)
      local lanes = left.lanes > 0 and redis.call("ZRANGE", order, 0, left.lanes) or {}
      for lane = 1, tasks and #lanes or 0 do tasks = tasks + Lanes.length_of(ctx, queue, its[member], lanes[lane]) end
      left.lanes = left.lanes - math.max(1, #lanes)
    end
    if left.lanes < 0 then tasks = nil end
  end
  -- Each group has a tenant at least.
  local others = redis.call("ZCARD", wait) - #groups
  if others > 0 then tasks = nil end
  return tenants + others, tasks
end

-- Returns the limits of a key at which claims found tasks to wait. `cools` is whether only a cool-down stops the key.
local function waited_of(ctx, key, first, cools, rules)
  local places = redis.call("LRANGE", ctx.prefix .. Keys.WAITERS .. key, first, first + PAGE - 1)
  local found, left = {}, {groups = GROUPS_AT_MOST, lanes = COUNTED_AT_MOST}
  table.sort(places)
  for index = 1, #places do
    local name, queue = string.match(places[index], "^(%S+) (.*)$")
    local looked = tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.AVAILABLE .. queue, name))
    if looked then
      local limit = Limits.set_own_numbers(ctx, Limits.read_limit(name), rules)
      local row = numbers_of(limit)
      row.queue = shown_queue(queue)
      row.tenants, row.tasks = count_waiters(ctx, places[index], queue, left)
      -- The score of a partition is lower by the version of its queue's numbers.
      row.state = cools and limit.concurrency ~= 0 and "cool-down" or "paused"
      if looked >= 0 then row.state = "available" elseif looked > Blocked.PAUSED then row.state = "exhausted" end
      found[#found + 1] = row
    end
  end
  return found
end

-- Returns the limit of a key that the first task has which a claim found to wait at the key.
local function waiting_limit(ctx, key)
  local place = redis.call("LINDEX", ctx.prefix .. Keys.WAITERS .. key, 0)
  if not place then return nil end
  local name, queue = string.match(place, "^(%S+) (.*)$")
  local lane = Blocked.first_lane(ctx, queue, name)
  return lane and "," .. Lanes.limits_of(lane)
end

-- Returns CONCURRENCY|RATES|THROTTLE of a key whose newest numbers are forgotten, or nil. They are those of a task
-- that waits, of one that runs, of the last start, or of the caller's app.
local function numbers_of_tasks(ctx, key, leases, app)
  local specs = waiting_limit(ctx, key) or ""
  for index = 1, #leases do specs = specs .. "," .. (leases[index].limits or "") end
  for of, numbers in string.gmatch(specs, ",([^|,]+)|(%d*|[^|]*|[^|,]*)|") do
    if of == key then return numbers end
  end
  return redis.call("HGET", ctx.prefix .. Keys.WINDOW .. key, "asked") or app ~= "" and app or nil
end

-- Returns the limit of a tenant's tier and the reason for it. If the key is no tenant's, the limit has no number.
local function of_tier(key, answer)
  local kind = answer.own_number and "own" or "tier"
  return {key = key, concurrency = answer.entitled, rates = "", throttle = ""},
    answer.tier and {kind = kind, limit = answer.entitled, tier = answer.tier}
end

-- Returns a limit of a task with the numbers that a claim starts from, and the reason for its concurrency.
local function of_task(ctx, spec, rules)
  local limit, kind = Limits.set_own_numbers(ctx, Limits.read_limit(spec), rules), "tasks"
  local row = Config.row_of_key(ctx, limit.key, rules)
  if row and not limit.asks then kind = row.set ~= "" and "queue" or "settings" end
  if limit.of_queue and not limit.of_parts then limit.of_process = nil end
  return limit, {kind = kind, limit = limit.concurrency}
end

-- Returns the numbers of a key without an override, and the reason for its concurrency. If no number is known, there
-- is no reason.
local function own_numbers(ctx, key, leases, app, answer, rules)
  local limit, reason = of_tier(key, answer)
  local row, known = Config.row_of_key(ctx, key, rules), redis.call("GET", ctx.prefix .. Keys.DECLARED .. key)
  if row and row.parts == (key ~= row.key) then
    limit.of_process, limit.concurrency, limit.rates, limit.throttle = row.of_process, row.concurrency, row.rates, row.throttle
    local kind = row.set ~= "" and "queue" or row.declared ~= "" and "settings"
    reason = kind and {kind = kind, limit = row.concurrency} or nil
  end
  if not known and not (row and reason) then known = numbers_of_tasks(ctx, key, leases, app) end
  if not known then return limit, reason end
  -- The stricter number counts.
  local concurrency, rates, throttle = Config.read_declared(known)
  local both = Rates.of_one_key({limit, {key = key, rates = rates, throttle = throttle}})[1]
  local least = math.min(limit.concurrency or math.huge, tonumber(concurrency) or math.huge)
  both.concurrency, both.of_process = least < math.huge and least or nil, limit.of_process
  if reason and both.concurrency == limit.concurrency then return both, reason end
  return both, {kind = string.match(key, "^queue:[^:]+") and "settings" or "tasks", limit = both.concurrency}
end

-- Returns the pause of a key, or of the whole tenant. The pause that ends last counts.
local function pause_of(ctx, key, of_all, rules)
  local of, lasts, text = key, Config.paused_ms(ctx, key, rules)
  if of_all ~= "" and of_all ~= key and Config.is_of_all(of_all) then
    local of_tenant, its_text = Config.paused_ms(ctx, of_all, rules)
    if of_tenant > lasts then of, lasts, text = of_all, of_tenant, its_text end
  end
  if lasts == 0 then return nil, 0 end
  local since, by = string.match(text, "^(%d+) (.*)$")
  return {kind = "paused", limit = 0, ends_ms = lasts < math.huge and rules.now + lasts or nil,
    since_ms = tonumber(since), by = by, pause_of = of ~= key and of or nil}, lasts
end

-- Returns the window of a limit that is the nearest to its number.
local function nearest_rate(ctx, limit, logical)
  local best
  for starts, period_ms in Rates.windows_of(limit.rates) do
    local count, wait = Rates.count_in(ctx, limit.key, starts, period_ms, logical)
    local part, least = count / starts, best and best[3] / best[1]
    if not best or part > least or part == least and wait > best[4] then best = {starts, period_ms, count, math.ceil(wait)} end
  end
  return best
end

-- Returns the throttle of a limit, and when its next start is due.
local function throttle_of(ctx, limit, logical)
  local starts, period_ms = Rates.windows_of(limit.throttle)()
  if not starts then return nil end
  local ideal = redis.call("HGET", ctx.prefix .. Keys.WINDOW .. limit.key, "ideal")
  return {starts, period_ms, math.max(0, math.ceil(ideal and ideal + period_ms / starts - logical or 0))}
end

-- Returns why no task may start now, and after how long one may. The time is nil if it takes a person, or the end
-- of a lease.
local function blocked_by(ctx, limit, own, pause_ms, cool_ms, override, rules)
  local stops = pause_ms
  if limit.concurrency == 0 then
    local ends = override and own ~= 0 and override.ends_ms
    stops = math.max(stops, ends and ends - rules.now or math.huge)
  end
  if stops > 0 then return "paused", stops < math.huge and math.max(stops, cool_ms) or nil end
  if cool_ms > 0 then return "cool-down", cool_ms end
  local wait, _, why = Limits.wait_ms(ctx, limit, rules)
  if why == "full" then return "concurrency", nil end
  return why, why and wait
end

-- Returns whether any table has something of a key.
local function is_used(ctx, key, answer, queue, logical)
  local known_until = tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.KEY_EXPIRY, " " .. key) or 0)
  local counted = answer.held + answer.ended_unswept + answer.waiting_count
  return counted > 0 or known_until > logical or answer.published == true or queue ~= false
    or (answer.override or answer.pause or answer.cool_ms) ~= nil
    or redis.call("EXISTS", ctx.prefix .. Keys.WINDOW .. key, ctx.prefix .. Keys.WAITERS .. key) > 0
end

-- Adds what the tier of a tenant gives it. The tier of the tasks that wait replaces that of the caller. An unknown
-- tier adds nothing.
local function add_tier(ctx, key, tenant_key, tier, default_tier, tiers, now, answer)
  local waits = redis.call("HGET", ctx.prefix .. Keys.TENANT_STATE .. key, "tier")
  local record = redis.call("HMGET", ctx.prefix .. tenant_key, "tier", "concurrency", "ends_ms")
  if record[3] and tonumber(record[3]) <= now then record[2] = "" end
  if waits and waits ~= "" then tier = waits end
  answer.published, answer.own_number = record[1] ~= false, record[1] ~= false and record[2] ~= ""
  if tier == "" and not record[1] then return end
  local tier_now, limit, weight = Config.entitlement_by(ctx, tenant_key, tier, default_tier, tiers, {}, now)
  answer.tier, answer.weight, answer.entitled = tier_now, weight, limit >= 0 and limit or nil
end

register("inspect", {"no-writes"}, function(keys, args)
  local ctx, key, tenant_key, lease_ms, tier = {prefix = keys[1]}, args[1], args[2], tonumber(args[3]), args[4]
  local enforcement, spec, app, first, frozen_ms = args[7], args[8], args[9], tonumber(args[10]), args[11]

  local logical, now, _, flags = Clock.read_clock(ctx, lease_ms, frozen_ms)
  local held, unswept, gone = count_leases(ctx, key, logical)
  local rules = {logical = logical, now = now, enforcement = enforcement, parked = flags.parked, held = {[key] = held}}
  local answer = {now = now, held = held, ended_unswept = unswept,
    waiting_count = tonumber(redis.call("HGET", ctx.prefix .. Keys.WAITING_AT, key) or 0)}
  if tenant_key ~= "" then add_tier(ctx, key, tenant_key, tier, args[5], cjson.decode(args[6]), now, answer) end

  local leases = leases_of(ctx, key, first, gone, logical)
  local pause, pause_ms = pause_of(ctx, key, tenant_key, rules)
  local cool_ms = math.max(0, tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.COOL_DOWNS, key) or 0) - logical)
  local override, limit, reason = Config.override_of(ctx, key, rules), nil, nil
  if spec == key then
    limit, reason = of_tier(key, answer)
  elseif spec ~= "" then
    limit, reason = of_task(ctx, spec, rules)
  else
    limit, reason = own_numbers(ctx, key, leases, app, answer, rules)
  end
  local own = limit.concurrency
  Config.replace(limit, override)
  answer.blocked_by, answer.opens_ms = blocked_by(ctx, limit, own, pause_ms, cool_ms, override, rules)
  answer.local_limit, answer.on_limit = limit.of_process, limit.on_limit
  answer.numbers, answer.reason, answer.override, answer.pause = numbers_of(limit), reason, override, pause
  answer.rate, answer.throttle = nearest_rate(ctx, limit, logical), throttle_of(ctx, limit, logical)
  if cool_ms > 0 then answer.cool_ms = cool_ms end

  local queue = Config.queue_of_key(ctx, key)
  -- Every task of a queue waits for the queue's limit.
  local in_queue = queue and redis.call("HGET", ctx.prefix .. Keys.WAITING, queue)
  answer.waiting_count = answer.waiting_count + (in_queue or 0)
  if tenant_key ~= "" or key == Tasks.SYSTEM then
    add_places(ctx, key, answer)
  else
    answer.waited = list(waited_of(ctx, key, first, cool_ms > 0 and not pause, rules))
  end
  answer.known = is_used(ctx, key, answer, queue, logical)
  for index = 1, #leases do leases[index].limits = nil end
  answer.leases = list(leases)
  return cjson.encode(answer)
end)
