--[[
  inspect: one snapshot of a key, by the rules of the next claim. The function writes nothing, so a replica can
  answer too. The clock is read and not moved on.

  The argument is a JSON object:
  lease_ms      how long a lease lives without a renewal
  default_tier  for a tier that is not known
  tiers         numbers of each tier as the caller holds them, as a text (numbers.lua)
  enforcement   "on", "observe" or "off"
  frozen_ms     "" in production (server TIME); set only by tests
  key           of a limit, of a queue, or of a tenant
  tenant_key    of the tenant's record, without the prefix; "" if the key is no tenant's
  tier          the tenant's tier as the caller holds it
  app           what the caller's app declares, as a text of numbers; "" is nothing
  first         index of the first lease, and of the first limit with waiting tasks

  Returns JSON. Times are in ms. A field without a value is left out. `celery_fairness/control/key/snapshot.py` reads
  it, and names what each field means.
]]
-- One page has at most 100 leases and 100 limits.
local PAGE = 100
-- One call looks at most at this many queues of a tenant.
local QUEUES_AT_MOST = 100
-- One call counts the tasks of at most 1000 lanes of a tenant. At the limits of a key it counts the tasks of at most
-- 200 lanes, and the tenants of at most 100 groups. Each of these takes some microseconds.
local LANES_AT_MOST = 1000
local COUNTED_AT_MOST = 200
local GROUPS_AT_MOST = 100

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
  answer.full_in, answer.waiting = Snapshot.list(full), Snapshot.list(lanes)
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
local function waited_of(ctx, key, first, cools)
  local places = redis.call("LRANGE", ctx.prefix .. Keys.WAITERS .. key, first, first + PAGE - 1)
  local found, left = {}, {groups = GROUPS_AT_MOST, lanes = COUNTED_AT_MOST}
  table.sort(places)
  for index = 1, #places do
    local name, queue = string.match(places[index], "^(%S+) (.*)$")
    local looked = tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.AVAILABLE .. queue, name))
    if looked then
      local limit = Limits.set_own_numbers(ctx, Limits.read_limit(name))
      local row = {numbers = Numbers.write(limit), queue = shown_queue(queue)}
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

-- Returns the numbers, as a text, of a key whose newest numbers are forgotten, or nil. They are those of a task
-- that waits, of one that runs, of the last start, or of the caller's app.
local function numbers_of_tasks(ctx, key, of_leases, app)
  local specs = (waiting_limit(ctx, key) or "") .. "," .. of_leases
  for of, numbers in string.gmatch(specs, ",([^|,]+)|([^|,]*)|") do
    if of == key then return numbers end
  end
  return redis.call("HGET", ctx.prefix .. Keys.WINDOW .. key, "asked") or app ~= "" and app or nil
end

-- Returns the numbers of a key without an override, and the reason for its concurrency. If no number is known, there
-- is no reason.
local function own_numbers(ctx, app, answer, of_leases)
  local key, limit, reason = answer.key, Snapshot.limit_of_tier(answer)
  local row, known = Config.row_of_key(ctx, key), redis.call("GET", ctx.prefix .. Keys.DECLARED .. key)
  local own = row and Config.limit_of_row(row, key)
  if own then
    Numbers.copy(limit, own)
    reason = own.kind and {kind = own.kind, limit = own.concurrency} or nil
  end
  if not known and not (row and reason) then known = numbers_of_tasks(ctx, key, of_leases, app) end
  if not known then return limit, reason end
  -- The stricter number counts.
  local both = Rates.of_one_key({limit, Numbers.set({key = key}, known)})[1]
  if reason and both.concurrency == limit.concurrency then return both, reason end
  return both, {kind = string.match(key, "^queue:[^:]+") and "settings" or "tasks", limit = both.concurrency}
end

-- Returns whether any table has something of a key.
local function is_used(ctx, key, answer, queue, logical)
  local known_until = tonumber(redis.call("ZSCORE", ctx.prefix .. Keys.KEY_EXPIRY, " " .. key) or 0)
  -- A pattern holds for keys that nobody has seen.
  local override = answer.override and not answer.override.pattern or nil
  local counted = answer.held + answer.ended_unswept + answer.waiting_count + (answer.delayed_count or 0)
  return counted > 0 or known_until > logical or answer.published == true or queue ~= false
    or (override or answer.pause or answer.cool_ms) ~= nil
    or redis.call("EXISTS", ctx.prefix .. Keys.WINDOW .. key, ctx.prefix .. Keys.WAITERS .. key) > 0
end

register_json("inspect", {"no-writes"}, function(ctx, wanted)
  local key, tenant_key, first = wanted.key, wanted.tenant_key, wanted.first
  local logical, now, _, flags = Clock.read_clock(ctx, wanted.lease_ms, wanted.frozen_ms)
  local rules = {logical = logical, now = now, enforcement = wanted.enforcement, parked = flags.parked}
  ctx.memo.held = {}
  local answer = Snapshot.of_key(ctx, key, tenant_key, rules)
  local page = Slots.page(ctx, key, first, first + PAGE - 1)
  local of_leases = Snapshot.add_leases(ctx, answer, page, rules)
  if tenant_key ~= "" then answer.delayed_count = redis.call("ZCARD", ctx.prefix .. Keys.SCHEDULED_OF .. key) end
  answer.now, answer.waiting_count = now, tonumber(redis.call("HGET", ctx.prefix .. Keys.WAITING_AT, key) or 0)
  if tenant_key ~= "" then
    Tenants.use_tiers(rules, wanted.default_tier, wanted.tiers)
    Snapshot.add_tier(ctx, answer, string.match(tenant_key, ":(.*)$"), wanted.tier, rules)
  end
  local limit, reason = own_numbers(ctx, wanted.app, answer, of_leases)
  -- The caller adds up what the partitions have, so the permits and lots of this one are left out (limiter/merged_answers.py).
  limit.is_bare, limit.private = Numbers.write(limit) == "", true
  Snapshot.check(ctx, answer, limit, reason, rules)
  local window = Rates.read(ctx, limit.key)
  answer.rates, answer.throttle = Snapshot.rates_of(window, limit, logical), Snapshot.throttle_of(window, limit, logical)

  local queue = Config.queue_of_key(ctx, key)
  if queue then answer.delayed_count = redis.call("ZCARD", ctx.prefix .. Keys.SCHEDULED .. queue) end
  -- Every task of a queue waits for the queue's limit.
  local in_queue = queue and redis.call("HGET", ctx.prefix .. Keys.WAITING, queue)
  answer.waiting_count = answer.waiting_count + (in_queue or 0)
  if tenant_key ~= "" or key == Tasks.SYSTEM then
    add_places(ctx, key, answer)
  else
    answer.waited = Snapshot.list(waited_of(ctx, key, first, answer.cool_ms and not answer.pause))
  end
  answer.known = is_used(ctx, key, answer, queue, logical)
  return answer
end)
