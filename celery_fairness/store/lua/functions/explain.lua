--[[
  explain: one snapshot of a task: where it is, its limits, and its place among all that may start before it. The
  function writes nothing, so a replica can answer too.

  A forecast needs the tenants whose turn comes before. The function returns the first of them as a sample, and about
  how many there are. All positions of a call share one budget of lanes and groups, and all limits one of leases.

  The argument is a JSON object:
  lease_ms      how long a lease lives without a renewal
  default_tier  for a tier that is not known
  tiers         numbers of each tier as the caller holds them, as a text (numbers.lua)
  enforcement   "on", "observe" or "off"
  frozen_ms     "" in production (server TIME); set only by tests
  tag           of the task
  fairness_by   what a task charges, "tasks", "cost" or "runtime"
  scope         what a rank orders, the tasks of a "tenant" or of a "queue"

  Returns JSON, an empty object if the tag is not known. A field without a value is left out. Every task has these fields:
  - now, logical   the server's time and the logical time, in ms
  - state, owner   as find.lua returns them, with `due` if it waits for a time
  - head           as tasks.lua writes it
  - unique_key     its unique key, if it has one

  A task that waits, or waits for its time, has these fields too:
  - limits         a snapshot of each of its limits (snapshot.lua). That of its tenant comes first, and that of its
                   queue last. `local_held` is how many slots each process has at least, if none may take another.
                   `started` has the starts [AT, STARTS] in the window of each rate, the oldest first. `ideal` is the
                   time of the last start by the throttle.
  - rescheduled_by the key of the limit that has rescheduled it

  A task that waits in a lane has these fields too:
  - in_lane        how many tasks are before it with its priority and limits
  - is_least       true if there are more lanes than the call counts, so that in_lane is a lower bound
  - tenants_ahead  how many active tenants are before its own
  - running        how many tasks run
  - rows           [TAG, ROW, HEAD] of some running tasks
  - means          the mean seconds by tenant's key, if tasks cost run time
  - turn           its position among the tenants of its queue
  - turns          its position by the key of a limit. The position at its tenant's key has only `mine`

  A position has these fields:
  - mine    the turn of its tenant
  - of_all  about how many tenants there are
  - turns   the turns of the first of them

  A turn is [KEY, AT, TASKS, CHARGE, NAMES, MEAN, LIMIT]:
  - AT      its virtual time
  - TASKS   how many of its tasks wait
  - CHARGE  the charge of each
  - NAMES   the names of its first tasks
  - MEAN    its mean seconds, or -1
  - LIMIT   how many of its tasks run at once, or -1
]]
-- The samples of all positions have this many units. A unit is one lane, which takes about a microsecond.
local UNITS_AT_MOST = 800
local UNITS_OF_TENANT = 14
-- Groups of all positions. One group takes about four microseconds, and so does the list of the groups at a limit.
local GROUPS_AT_MOST = 200
-- Lanes of its own tenant, and running tasks. Each takes about two microseconds.
local OLDER_LANES_AT_MOST = 300
local RUNNING_AT_MOST = 300
-- Leases of the limits that block the task, and of its other limits. Each takes about eight microseconds.
local LEASES_AT_MOST, OTHER_LEASES_AT_MOST = 100, 50
-- The first lanes of a turn stand for all, and the first tasks have the cost and the name of all.
local LANES_OF_TURN, FIRST_TASKS = 20, 2

local function older_in(it, lane)
  return redis.call("ZCOUNT", it.ctx.prefix .. Lanes.tags_name(it.task.key, lane, it.task.queue), "-inf",
    "(" .. Rates.int_text(it.task.seq))
end

-- Returns how many tasks of its tenant go before the task in one order: with its class, and in all lanes. Also returns
-- whether there are more lanes than it counts.
local function count_older(it)
  local own, order = Lanes.lane_of(it.task), Lanes.order_name(it.task.key, it.group, it.task.queue)
  it.raised_at = Aging.raised_at(it.ctx, order, own, it.task.seq)
  -- The first task of any other lane is newer, or has a lower rank.
  local lanes = redis.call("ZRANGEBYSCORE", it.ctx.prefix .. order, "-inf",
    Rates.int_text(it.raised_at or Lanes.order_of(own, it.task.seq)), "LIMIT", 0, OLDER_LANES_AT_MOST + 1)
  local class, of_class, all = Lanes.class_of(own), 0, 0
  for index = 1, math.min(#lanes, OLDER_LANES_AT_MOST) do
    local rank = string.sub(lanes[index], 1, 1)
    if rank < it.task.rank then
      -- The lane is raised for its first task alone.
      all = all + 1
    elseif rank > it.task.rank then
      all = all + Lanes.length_of(it.ctx, it.task.queue, it.task.key, lanes[index])
    elseif rank == it.task.rank then
      local older = older_in(it, lanes[index])
      all = all + older
      if Lanes.class_of(lanes[index]) == class then of_class = of_class + older end
    end
  end
  return of_class, all, #lanes > OLDER_LANES_AT_MOST
end

-- Returns the state of a tenant, and its mean seconds or nil.
local function tenant_state_of(it, key)
  local known = redis.call("HMGET", it.ctx.prefix .. Keys.TENANT_STATE .. key, "tier", "tenant", "mean")
  return Tenants.state(it.ctx, key, known[2] or "", known[1] or "", it.rules), tonumber(known[3])
end

-- Returns the turn of a tenant that is due at a virtual time in a queue or in one of its groups.
local function turn_of(it, key, at, group, queue)
  local order = it.ctx.prefix .. Lanes.order_name(key, group, queue)
  local lanes, tasks = redis.call("ZRANGE", order, 0, LANES_OF_TURN - 1), 0
  for index = 1, #lanes do tasks = tasks + Lanes.length_of(it.ctx, queue, key, lanes[index]) end
  if #lanes == LANES_OF_TURN then tasks = math.floor(tasks * redis.call("ZCARD", order) / #lanes) end
  it.left = it.left - UNITS_OF_TENANT - #lanes
  local names, costs = {}, 0
  local tags = {}
  if lanes[1] then
    tags = redis.call("ZRANGE", it.ctx.prefix .. Lanes.tags_name(key, lanes[1], queue), 0, FIRST_TASKS - 1)
  end
  for index = 1, #tags do
    local task = Tasks.read(it.ctx, tags[index])
    if task then
      names[#names + 1] = task.name
      costs = costs + task.cost
    end
  end
  local state, mean = tenant_state_of(it, key)
  local expected = Start.expected_of(it.fairness_by, #names > 0 and costs / #names or 1, mean)
  if #names == 0 then names[1] = "" end
  return {key, at, tasks, Start.attribution_of(expected, state.weight), names, mean or -1, state.limit}
end

local function until_of(place)
  return place.mine[2] + place.mine[3] * place.mine[4]
end

-- Adds the turns of the tenants of a sorted set until the place's own, while units are left for the sample. The set is
-- that of a queue, or of one of its groups. `is_there` returns the virtual time of a tenant that counts.
local function add_turns(it, place, name, queue, group, is_there)
  local bound = string.format("%.17g", until_of(place))
  local some = it.left > 0 and redis.call("ZRANGEBYSCORE", it.ctx.prefix .. name, "-inf", bound, "WITHSCORES",
    "LIMIT", 0, math.ceil(it.left / UNITS_OF_TENANT)) or {}
  local looked_at, there = 0, 0
  for index = 1, #some, 2 do
    if it.left <= 0 then break end
    it.left, looked_at = it.left - 1, looked_at + 1
    local at = is_there(some[index], tonumber(some[index + 1]))
    if at then
      place.turns[#place.turns + 1] = turn_of(it, some[index], at, group, queue)
      there = there + 1
    end
  end
  local all = redis.call("ZCOUNT", it.ctx.prefix .. name, "-inf", bound)
  -- The tenants that were not looked at count in the same proportion.
  place.of_all = place.of_all + (looked_at > 0 and math.floor(all * there / looked_at) or all)
end

local function place_of(it, mine)
  it.left = UNITS_AT_MOST / it.positions
  return {mine = mine, of_all = 0, turns = {}}
end

local function as_it_is(_, at) return at end

-- Returns the position among the tenants of the queue, or nil if the tenant has none. A tenant at its limit gets its
-- turn back when one of its tasks ends. A tenant that is paused, or whose tasks wait for other limits, does not count.
local function place_among_active(it, older)
  local ctx, queue, key = it.ctx, it.task.queue, it.task.key
  local virtual = Active.virtual_time(ctx, queue)
  local start = redis.call("ZSCORE", ctx.prefix .. Keys.ACTIVE .. queue, key)
  local finish = not start and redis.call("ZSCORE", ctx.prefix .. Keys.BLOCKED .. queue, key)
  if not start and not finish then return nil end
  local mine = turn_of(it, key, start and tonumber(start) or math.max(tonumber(finish), virtual), it.group, queue)
  mine[3] = older
  local place = place_of(it, mine)
  add_turns(it, place, Keys.ACTIVE .. queue, queue, nil, as_it_is)
  add_turns(it, place, Keys.BLOCKED .. queue, queue, nil, function(other, at)
    local at_limit = redis.call("ZSCORE", ctx.prefix .. Keys.AT_LIMIT, other)
    return at_limit and tonumber(at_limit) >= 0 and math.max(at, virtual)
  end)
  return place
end

-- Returns the position at a shared limit, over all queues.
local function place_at_limit(it, limit_key, older)
  local ctx, queue, key = it.ctx, it.task.queue, it.task.key
  local name = it.group and redis.call("HGET", ctx.prefix .. Keys.GROUPS .. queue, it.group)
  local at = name and string.match(name, "^[^|]*") == limit_key
    and redis.call("ZSCORE", ctx.prefix .. Keys.GROUP .. it.group .. " " .. queue, key)
  local virtual = redis.call("HGET", ctx.prefix .. Keys.VIRTUAL_TIMES, "limit " .. limit_key)
  if not at and virtual then at = Blocked.shared_start(ctx, limit_key, key, virtual) end
  local mine = turn_of(it, key, tonumber(at or 0), it.group, queue)
  mine[3] = older
  local place = place_of(it, mine)
  if not at then return {mine = mine} end
  local most = math.ceil(GROUPS_AT_MOST / it.positions)
  local waited = redis.call("LRANGE", ctx.prefix .. Keys.WAITERS .. limit_key, 0, most - 1)
  local left, looked_at, looked_in, all = most, 0, 0, 0
  for index = 1, #waited do
    if left <= 0 then break end
    local where, at_limit = string.match(waited[index], "^%S+ (.*)$"), ctx.prefix .. Keys.GROUPS_AT .. waited[index]
    local groups = redis.call("ZRANGE", at_limit, 0, left - 1)
    left, looked_at, looked_in = left - 1 - #groups, looked_at + #groups, looked_in + 1
    all = all + redis.call("ZCARD", at_limit)
    for each = 1, #groups do
      add_turns(it, place, Keys.GROUP .. groups[each] .. " " .. where, where, groups[each], as_it_is)
    end
  end
  -- The groups that were not looked at count in the same proportion.
  if left <= 0 and looked_at > 0 then
    local lists = redis.call("LLEN", ctx.prefix .. Keys.WAITERS .. limit_key)
    place.of_all = math.floor(place.of_all * all / looked_at * lists / looked_in)
  end
  return place
end

-- Returns how many active tenants are before the task's own, or nil if its own is not active.
local function count_active(it, scope)
  local ctx, queue, key = it.ctx, it.task.queue, it.task.key
  local rank = scope == "queue" and redis.call("ZSCORE", ctx.prefix .. Keys.RANKED .. queue, key)
  if not rank then return redis.call("ZRANK", ctx.prefix .. Keys.ACTIVE .. queue, key) or nil end
  local place = redis.call("ZRANK", ctx.prefix .. Keys.RANK .. rank .. " " .. queue, key)
  return place and redis.call("ZCOUNT", ctx.prefix .. Keys.RANKED .. queue, "(" .. rank, "+inf") + place or nil
end

-- Adds a sample of the running tasks.
local function add_running(it, answer)
  local prefix = it.ctx.prefix
  local all = redis.call("HLEN", prefix .. Keys.RUNNING)
  local flat, rows, means = redis.call("HSCAN", prefix .. Keys.RUNNING, 0, "COUNT", RUNNING_AT_MOST)[2], {}, {}
  for index = 1, math.min(#flat, 2 * RUNNING_AT_MOST), 2 do
    local tag = flat[index]
    local head = redis.call("HGET", prefix .. Keys.TASKS, tag)
    if head then
      rows[#rows + 1] = {tag, flat[index + 1], head}
      local task = it.fairness_by == "runtime" and Tasks.read_head(tag, head)
      if task and task.queue == it.task.queue and means[task.key] == nil then
        means[task.key] = tonumber(redis.call("HGET", prefix .. Keys.TENANT_STATE .. task.key, "mean"))
      end
    end
  end
  -- The sample shows how many of the rows are those of claimed tasks.
  local sampled = math.min(#flat / 2, RUNNING_AT_MOST)
  answer.running = #rows > 0 and math.floor(all * #rows / sampled + 0.5) or 0
  answer.rows, answer.means = Snapshot.list(rows), next(means) and means or nil
end

-- Returns the slots of a key in the process that holds the fewest, or nil if no task of the queue runs. It sees no
-- process that runs none of them.
local function least_held(it, key, rows)
  local held, least = {}, nil
  for index = 1, #rows do
    local tag, text, head = unpack(rows[index])
    if Tasks.read_head(tag, head).queue == it.task.queue then
      local row = Tasks.read_row(text)
      local has = string.find("," .. row.keys .. ",", "," .. key .. ",", 1, true)
      held[row.owner] = (held[row.owner] or 0) + (has and 1 or 0)
    end
  end
  for _, number in pairs(held) do least = math.min(least or number, number) end
  return least
end

-- Adds a snapshot of a limit.
local function add_limit(it, answer, found, limit, reason)
  -- A worker sends a task of a gate back to its broker, so no parked task waits for it.
  if it.rules.enforcement ~= "on" or it.task.route then limit.local_limit = nil end
  Snapshot.check(it.ctx, found, limit, reason, it.rules)
  if limit.rate ~= "" or limit.throttle ~= "" then
    local window, started = Rates.read(it.ctx, limit.key), {}
    for _, period_ms in Rates.windows_of(limit.rate) do
      started[#started + 1] = Rates.entries_in(window, period_ms, it.rules.logical)
    end
    found.started, found.ideal = started, window.ideal
  end
  -- With a limit of 0 no process starts the task.
  local most = found.local_limit
  local least = most == 0 and 0 or most and least_held(it, found.key, answer.rows or {})
  if least and least >= most then found.local_held = least end
  answer.limits[#answer.limits + 1] = found
end

-- Returns the names of about a part of the leases of a key, evenly from the oldest to the newest.
local function sample_leases(it, found, part)
  if part >= 1 then return Slots.page(it.ctx, found.key, 0, -1) end
  local names, all = {}, Slots.leases(it.ctx, found.key)
  local most = math.ceil(all * part)
  for index = 1, most do
    local place = math.floor((index - 0.5) * all / most)
    names[index] = Slots.page(it.ctx, found.key, place, place)[1]
  end
  return names
end

-- Adds leases to limits, at most about `most` in all. If `block` is true, these are the limits that block the task.
-- Otherwise they are the other limits that have a concurrency.
local function add_leases(it, limits, block, most)
  local some, all = {}, 0
  for index = 1, #limits do
    local found = limits[index]
    local blocks = (found.blocked_by or found.local_held) ~= nil
    if blocks == block and (block or string.find(found.numbers, "C%d")) then
      some[#some + 1], all = found, all + Slots.leases(it.ctx, found.key)
    end
  end
  for index = 1, #some do
    Snapshot.add_leases(it.ctx, some[index], all > 0 and sample_leases(it, some[index], most / all) or {}, it.rules)
  end
end

-- Adds a snapshot of each limit of the task.
local function add_limits(it, answer)
  local ctx, task, rules, specs = it.ctx, it.task, it.rules, {}
  local row = Config.queue_row(ctx, task.queue)
  for spec in string.gmatch(task.limits, "[^,]+") do specs[#specs + 1] = spec end
  if row then specs[#specs + 1] = row.spec end
  if task.key ~= Tasks.SYSTEM then
    local tenant_key = "tenant:" .. task.tenant
    local found = Snapshot.of_key(ctx, task.key, tenant_key, rules)
    Snapshot.add_tier(ctx, found, task.tenant, rules.default_tier, rules)
    add_limit(it, answer, found, Snapshot.limit_of_tier(found))
  end
  for index = 1, #specs do
    local limit, reason = Snapshot.limit_of_task(ctx, specs[index])
    -- Of the tasks that wait at a place, the key saves for the first one.
    local saved = it.place and it.ctx.several and Saving.of(it.ctx, limit.key)
    limit.place = not (saved and saved.tenant ~= it.task.key) and it.place or nil
    if row and index == #specs then limit.local_limit = row.whole.local_limit end
    add_limit(it, answer, Snapshot.of_key(ctx, limit.key, "", rules), limit, reason)
  end
  add_leases(it, answer.limits, true, LEASES_AT_MOST)
  add_leases(it, answer.limits, false, OTHER_LEASES_AT_MOST)
end

-- Returns the key of the limit that has rescheduled the task, or nil if none did or it is not known. A key stores only
-- its first rescheduled tasks, and forgets them if people change it. For the others the head has the first limit that
-- was closed, which may be another one.
local function rescheduled_by(it, limits)
  local task, by = it.task, nil
  local rejected = string.match(task.blocked, "|(.*)$")
  for index = 1, #limits do
    local key = limits[index].key
    if limits[index].on_limit == "r" then
      if Backoff.has_rescheduled(it.ctx, key, task) then return key end
      if rejected and (not by or key == rejected) then by = key end
    end
  end
  return by
end

-- Adds the place of the task among all that may start before it.
local function add_place(it, answer, scope)
  local task = it.task
  it.group, it.left, it.positions = Lanes.group_of(it.ctx, task.queue, task.key, Lanes.lane_of(task)), 0, 1
  local name = it.group and redis.call("HGET", it.ctx.prefix .. Keys.GROUPS .. task.queue, it.group)
  it.place = name and Saving.place_of(name, task.queue)
  for _ in string.gmatch(task.limits, "[^,]+") do it.positions = it.positions + 1 end
  local of_class, all, is_least = count_older(it)
  answer.raised = it.raised_at and true
  answer.in_lane, answer.is_least, answer.tenants_ahead = of_class, is_least or nil, count_active(it, scope)
  answer.turn = place_among_active(it, all)
  local own = turn_of(it, task.key, 0, it.group, task.queue)
  own[3] = all
  answer.turns = {[task.key] = {mine = own}}
  for key in string.gmatch("," .. task.limits, ",([^|,]+)|") do
    if not answer.turns[key] then answer.turns[key] = place_at_limit(it, key, of_class) end
  end
end

register_json("explain", {"no-writes"}, function(ctx, wanted)
  local head = redis.call("HGET", ctx.prefix .. Keys.TASKS, wanted.tag)
  if not head then return {} end
  local task = Tasks.read_head(wanted.tag, head)
  local logical, now, _, flags = Clock.read_clock(ctx, wanted.lease_ms, wanted.frozen_ms)
  local state, owner, due = Find.state_of(ctx, task)
  ctx.ranked = flags.ranked
  local answer = {now = now, logical = logical, state = state, owner = owner, due = tonumber(due), head = head,
    unique_key = Unique.key_of(ctx, wanted.tag)}
  if state ~= "waiting" and state ~= "delayed" then return answer end
  local rules = {logical = logical, now = now, enforcement = wanted.enforcement, parked = flags.parked,
    has_overrides = flags.has_overrides, is_look = true}
  ctx.memo.held = {}
  Tenants.use_tiers(rules, wanted.default_tier, wanted.tiers)
  local it = {ctx = ctx, task = task, fairness_by = wanted.fairness_by, rules = rules}
  if state == "waiting" then
    add_running(it, answer)
    add_place(it, answer, wanted.scope)
  end
  answer.limits = {}
  add_limits(it, answer)
  answer.rescheduled_by = due and rescheduled_by(it, answer.limits)
  answer.limits = Snapshot.list(answer.limits)
  return answer
end)
