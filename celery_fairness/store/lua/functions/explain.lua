--[[
  explain: the place of a waiting task among all that may start before it, as one snapshot. The function writes nothing.

  It checks no limit: inspect.lua returns why a limit blocks the task.

  A forecast needs the tenants whose turn comes before. The function returns the first of them as a sample, and about
  how many there are. All positions of a call share one budget of lanes and groups.

  args[1]  tag           str  of the task
  args[2]  fairness_by   str  what a task charges, "tasks", "cost" or "runtime"
  args[3]  scope         str  what a rank orders, the tasks of a "tenant" or of a "queue"
  args[4]  default_tier  str  for a tier that is not known
  args[5]  tiers         str  JSON: the concurrency (text) and the weight of each tier as the caller holds them
  args[6]  lease_ms      int  how long a lease lives without a renewal
  args[7]  frozen_ms     str  "" in production (server TIME); set only by tests

  Returns JSON, or "" if the task does not wait in a lane. A field without a value is left out.
  - now, logical  the server's time and the logical time, in ms
  - in_lane       how many tasks are before it with its priority and limits
  - is_least      true if there are more lanes than the call counts, so that in_lane is a lower bound
  - tenants_ahead how many active tenants are before its own
  - running       how many tasks run
  - rows          [TAG, ROW, HEAD] of some running tasks
  - means         the mean seconds by tenant's key, if tasks cost run time
  - turn          its position among the tenants of its queue
  - limits        its position by key. The position at its tenant's key has only `mine`

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
local UNITS_AT_MOST = 1500
local UNITS_OF_TENANT = 14
-- Groups of all positions. One group takes about four microseconds, and so does the list of the groups at a limit.
local GROUPS_AT_MOST = 200
-- Lanes of its own tenant, and running tasks. Each takes about two microseconds.
local OLDER_LANES_AT_MOST = 300
local RUNNING_AT_MOST = 300
-- The first lanes of a turn stand for all, and the first tasks have the cost and the name of all.
local LANES_OF_TURN, FIRST_TASKS = 20, 2

local function older_in(it, lane)
  return redis.call("ZCOUNT", it.ctx.prefix .. Lanes.tags_name(it.task.key, lane, it.task.queue), "-inf",
    "(" .. Rates.int_text(it.task.seq))
end

-- Returns how many tasks of its tenant go before the task in one order: with its class, and in all lanes. Also returns
-- whether there are more lanes than it counts.
local function count_older(it)
  local own = Lanes.lane_of(it.task)
  -- The first task of any other lane is newer, or has a lower rank.
  local lanes = redis.call("ZRANGEBYSCORE", it.ctx.prefix .. Lanes.order_name(it.task.key, it.group, it.task.queue),
    "-inf", Rates.int_text(Lanes.order_of(own, it.task.seq)), "LIMIT", 0, OLDER_LANES_AT_MOST + 1)
  local class, of_class, all = Lanes.class_of(own), 0, 0
  for index = 1, math.min(#lanes, OLDER_LANES_AT_MOST) do
    local rank = string.sub(lanes[index], 1, 1)
    if rank > it.task.rank then
      all = all + Lanes.length_of(it.ctx, it.task.queue, it.task.key, lanes[index])
    elseif rank == it.task.rank then
      local older = older_in(it, lanes[index])
      all = all + older
      if Lanes.class_of(lanes[index]) == class then of_class = of_class + older end
    end
  end
  return of_class, all, #lanes > OLDER_LANES_AT_MOST
end

local function tenant_state_of(it, key)
  local known = redis.call("HMGET", it.ctx.prefix .. Keys.TENANT_STATE .. key, "tier", "tenant", "mean")
  if key == Tasks.SYSTEM then return -1, 1, tonumber(known[3]) end
  local _, limit, weight = Config.entitlement_by(it.ctx, "tenant:" .. (known[2] or ""), known[1] or "", it.default_tier,
    it.tiers, it.read, it.now)
  return limit, weight, tonumber(known[3])
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
  local limit, weight, mean = tenant_state_of(it, key)
  local expected = Start.expected_of(it.fairness_by, #names > 0 and costs / #names or 1, mean)
  if #names == 0 then names[1] = "" end
  return {key, at, tasks, Start.attribution_of(expected, weight), names, mean or -1, limit}
end

-- Adds the turns of the tenants of a sorted set up to a virtual time, while units are left for the sample. `is_there`
-- returns the virtual time of a tenant that counts.
local function add_turns(it, place, name, until_time, group, queue, is_there)
  local bound = string.format("%.17g", until_time)
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

local function until_of(place)
  return place.mine[2] + place.mine[3] * place.mine[4]
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
  add_turns(it, place, Keys.ACTIVE .. queue, until_of(place), nil, queue, as_it_is)
  add_turns(it, place, Keys.BLOCKED .. queue, until_of(place), nil, queue, function(other, at)
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
      add_turns(it, place, Keys.GROUP .. groups[each] .. " " .. where, until_of(place), groups[each], where, as_it_is)
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
        means[task.key] = tonumber(redis.call("HGET", prefix .. Keys.TENANT_STATE .. task.key, "mean")) or -1
      end
    end
  end
  -- The sample shows how many of the rows are those of claimed tasks.
  local sampled = math.min(#flat / 2, RUNNING_AT_MOST)
  answer.running = #rows > 0 and math.floor(all * #rows / sampled + 0.5) or 0
  answer.rows, answer.means = #rows > 0 and rows or nil, next(means) and means or nil
end

register("explain", {"no-writes"}, function(keys, args)
  local ctx = {prefix = keys[1]}
  local task = Tasks.read(ctx, args[1])
  if not task or Find.state_of(ctx, task) ~= "waiting" then return "" end
  local logical, now = Clock.read_clock(ctx, tonumber(args[6]), args[7])
  local it = {ctx = ctx, task = task, fairness_by = args[2], default_tier = args[4], tiers = cjson.decode(args[5]),
    read = {}, now = now, group = Lanes.group_of(ctx, task.queue, task.key, Lanes.lane_of(task)), left = 0, positions = 1}
  for _ in string.gmatch(task.limits, "[^,]+") do it.positions = it.positions + 1 end
  local of_class, all, is_least = count_older(it)
  local answer = {now = now, logical = logical, in_lane = of_class, is_least = is_least or nil,
    tenants_ahead = count_active(it, args[3]), limits = {}}
  add_running(it, answer)
  answer.turn = place_among_active(it, all)
  local own = turn_of(it, task.key, 0, it.group, task.queue)
  own[3] = all
  answer.limits[task.key] = {mine = own}
  for key in string.gmatch("," .. task.limits, ",([^|,]+)|") do
    if not answer.limits[key] then answer.limits[key] = place_at_limit(it, key, of_class) end
  end
  return cjson.encode(answer)
end)
