--[[
  overview: the queues of an installation, and the processes that run tasks. The function writes nothing.

  The argument is a JSON object:
  lease_ms      how long a lease lives without a renewal
  frozen_ms     "" in production (server TIME); set only by tests
  default_tier  of a tenant whose record has ended
  only          the only queue of the answer, or "" for all
  first         index of the first queue
  queues        queues that are shown even if nothing is known of them

  Returns JSON. A field without a value is left out.
  - now          the server's time in ms
  - queues       rows [QUEUE, WAITING, LATER, DEAD, ACTIVE, BLOCKED, RUNNING], those with the most waiting tasks first.
                 ACTIVE and BLOCKED are tenants.
  - queue_count  how many queues there are
  - running      how many tasks run; estimated if there are more rows than one call looks at
  - sampled      how many of them were looked at. RUNNING, the owners and the tiers are those of this sample.
  - owners       rows [OWNER, TASKS], the most tasks first
  - tiers        rows [PLACE, TASKS]. PLACE is `TIER QUEUE`: the tenant's published tier, otherwise that of the message,
                 and "" without either.
]]
-- One queue takes about ten microseconds, and one running task five.
local QUEUES_AT_MOST, RUNNING_AT_MOST = 100, 500

-- Returns the queues in which tasks wait or run, or that have delayed tasks or dead letters, and those of `names`. A
-- row is {QUEUE, WAITING}.
local function known_queues(ctx, names, by_queue, is_ordered)
  local counts, seen, found = redis.call("HGETALL", ctx.prefix .. Keys.WAITING), {}, {}
  local function add(queue, waiting)
    if seen[queue] or queue == "" then return end
    seen[queue], found[#found + 1] = true, {queue, waiting}
  end
  for index = 1, #counts, 2 do add(counts[index], tonumber(counts[index + 1])) end
  local others = redis.call("SMEMBERS", ctx.prefix .. Keys.QUEUES)
  for index = 1, #others do add(others[index], 0) end
  for queue in pairs(by_queue) do add(queue, 0) end
  for index = 1, #names do add(names[index], 0) end
  if is_ordered then
    table.sort(found, function(one, other) return one[2] > other[2] or one[2] == other[2] and one[1] < other[1] end)
  end
  return found
end

-- Returns a counter of running tasks: by queue, by owner, and by queue and tier.
local function new_count(ctx, default_tier, now)
  local found = {by_queue = {}, by_owner = {}, by_tier = {}, sampled = 0, published = {}}
  -- Returns the tier of a tenant: the published one, or that of the message.
  local function tier_of(key, tier)
    if key == Tasks.SYSTEM then return "" end
    local published = found.published[key]
    if published == nil then
      local record = redis.call("HMGET", ctx.prefix .. key, "tier", "ends_ms")
      published = record[2] and tonumber(record[2]) <= now and default_tier or record[1]
      found.published[key] = published
    end
    return published and published ~= "" and published or tier
  end
  function found.count(queue, owner, key, tier)
    local place = tier_of(key, tier) .. " " .. queue
    found.sampled, found.by_queue[queue] = found.sampled + 1, (found.by_queue[queue] or 0) + 1
    found.by_owner[owner], found.by_tier[place] = (found.by_owner[owner] or 0) + 1, (found.by_tier[place] or 0) + 1
  end
  return found
end

-- Returns what is counted of the running tasks, and how many run. A promoted task has a row too, and does not run.
local function count_running(ctx, default_tier, now)
  local rows = redis.call("HRANDFIELD", ctx.prefix .. Keys.RUNNING, RUNNING_AT_MOST, "WITHVALUES")
  local tags, owners, found = {}, {}, new_count(ctx, default_tier, now)
  for index = 1, #rows, 2 do
    local owner, state = Tasks.owner_of(rows[index + 1])
    if state == "held" then
      local row = Tasks.read_row(rows[index + 1])
      found.count(row.queue, owner, string.match(row.keys, "^[^,]+"), "")
    elseif not Promotions.is_promotion({state = state}) then
      tags[#tags + 1], owners[#owners + 1] = rows[index], owner
    end
  end
  local heads = #tags > 0 and redis.call("HMGET", ctx.prefix .. Keys.TASKS, unpack(tags)) or {}
  for index = 1, #tags do
    local task = heads[index] and Tasks.read_head(tags[index], heads[index])
    -- A record of a tier is the tenant's, for all its services.
    if task then found.count(task.queue, owners[index], Tasks.key_of(task.tenant, ""), task.tier) end
  end
  local of_all = redis.call("HLEN", ctx.prefix .. Keys.RUNNING)
  return found, math.floor(of_all * found.sampled / math.max(1, #rows / 2) + 0.5)
end

-- Returns rows of a table of counts, the most tasks first.
local function rows_of(counts)
  local rows = {}
  for name, tasks in pairs(counts) do rows[#rows + 1] = {name, tasks} end
  table.sort(rows, function(one, other) return one[2] > other[2] or one[2] == other[2] and one[1] < other[1] end)
  return #rows > 0 and rows or nil
end

local function queue_row(ctx, queue, waiting, running)
  return {queue, waiting, redis.call("ZCARD", ctx.prefix .. Keys.SCHEDULED .. queue),
    redis.call("ZCARD", ctx.prefix .. Keys.DEAD .. queue), redis.call("ZCARD", ctx.prefix .. Keys.ACTIVE .. queue),
    redis.call("ZCARD", ctx.prefix .. Keys.BLOCKED .. queue), running}
end

register_json("overview", {"no-writes"}, function(ctx, wanted)
  local only, first = wanted.only, wanted.first
  local _, now = Clock.read_clock(ctx, wanted.lease_ms, wanted.frozen_ms)
  local counted, running = count_running(ctx, wanted.default_tier, now)
  local found, rows = known_queues(ctx, wanted.queues, counted.by_queue, only == ""), {}
  for index = 1, #found do
    local queue, waiting = found[index][1], found[index][2]
    local is_shown = only == queue or only == "" and index > first and index <= first + QUEUES_AT_MOST
    if is_shown then rows[#rows + 1] = queue_row(ctx, queue, waiting, counted.by_queue[queue] or 0) end
  end
  return {now = now, queues = #rows > 0 and rows or nil, queue_count = #found, sampled = counted.sampled,
    running = running, owners = rows_of(counted.by_owner), tiers = rows_of(counted.by_tier)}
end)
