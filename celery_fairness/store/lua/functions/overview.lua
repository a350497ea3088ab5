--[[
  overview: the queues of an installation, and the processes that run tasks. The function writes nothing.

  args[1]  lease_ms   int  how long a lease lives without a renewal
  args[2]  frozen_ms  str  "" in production (server TIME); set only by tests
  args[3]  only       str  the only queue of the answer, or "" for all
  args[4]  first      int  index of the first queue
  args[5+] queues     str  that are shown even if nothing is known of them

  Returns JSON. A field without a value is left out.
  - now          the server's time in ms
  - queues       rows [QUEUE, WAITING, LATER, DEAD, ACTIVE, BLOCKED, RUNNING], those with the most waiting tasks first.
                 ACTIVE and BLOCKED are tenants.
  - queue_count  how many queues there are
  - running      how many tasks run; estimated if there are more rows than one call looks at
  - sampled      how many of them were looked at. RUNNING and the owners are those of this sample.
  - owners       rows [OWNER, TASKS], the most tasks first
]]
-- One queue takes about ten microseconds, and one running task five.
local QUEUES_AT_MOST, RUNNING_AT_MOST = 100, 500

-- Returns the queues in which tasks wait or run, or that have delayed tasks or dead letters, and those of `names`. A
-- row is {QUEUE, WAITING}.
local function known_queues(ctx, names, by_queue)
  local counts, seen, found = redis.call("HGETALL", ctx.prefix .. "waiting"), {}, {}
  local function add(queue, waiting)
    if seen[queue] or queue == "" then return end
    seen[queue], found[#found + 1] = true, {queue, waiting}
  end
  for index = 1, #counts, 2 do add(counts[index], tonumber(counts[index + 1])) end
  local others = redis.call("SMEMBERS", ctx.prefix .. "queues")
  for index = 1, #others do add(others[index], 0) end
  for queue in pairs(by_queue) do add(queue, 0) end
  for index = 1, #names do add(names[index], 0) end
  table.sort(found, function(one, other) return one[2] > other[2] or one[2] == other[2] and one[1] < other[1] end)
  return found
end

-- Returns the running tasks by queue and by owner, how many were looked at, and how many run. A promoted task has
-- a row too, and does not run.
local function count_running(ctx)
  local rows = redis.call("HRANDFIELD", ctx.prefix .. "running", RUNNING_AT_MOST, "WITHVALUES")
  local by_queue, by_owner, tags, sampled = {}, {}, {}, 0
  local function count(queue, owner)
    sampled, by_queue[queue] = sampled + 1, (by_queue[queue] or 0) + 1
    by_owner[owner] = (by_owner[owner] or 0) + 1
  end
  local owners = {}
  for index = 1, #rows, 2 do
    local owner, state = Tasks.owner_of(rows[index + 1])
    if state == "held" then
      count(Tasks.read_row(rows[index + 1]).queue, owner)
    elseif not Promotions.is_promotion({state = state}) then
      tags[#tags + 1], owners[#owners + 1] = rows[index], owner
    end
  end
  local heads = #tags > 0 and redis.call("HMGET", ctx.prefix .. "tasks", unpack(tags)) or {}
  for index = 1, #tags do
    if heads[index] then count(Tasks.queue_of(heads[index]), owners[index]) end
  end
  local rows_of_all = redis.call("HLEN", ctx.prefix .. "running")
  return by_queue, by_owner, sampled, math.floor(rows_of_all * sampled / math.max(1, #rows / 2) + 0.5)
end

local function queue_row(ctx, queue, waiting, running)
  return {queue, waiting, redis.call("ZCARD", ctx.prefix .. "later:" .. queue),
    redis.call("ZCARD", ctx.prefix .. "dead:" .. queue), redis.call("ZCARD", ctx.prefix .. "ring:" .. queue),
    redis.call("ZCARD", ctx.prefix .. "full:" .. queue), running}
end

register("overview", {"no-writes"}, function(keys, args)
  local ctx, lease_ms, frozen_ms, only, first = {prefix = keys[1]}, tonumber(args[1]), args[2], args[3], tonumber(args[4])
  local _, now = Clock.read_clock(ctx, lease_ms, frozen_ms)
  local names = {}
  for index = 5, #args do names[#names + 1] = args[index] end
  local by_queue, by_owner, sampled, running = count_running(ctx)
  local found, rows, owners = known_queues(ctx, names, by_queue), {}, {}
  for index = 1, #found do
    local queue, waiting = found[index][1], found[index][2]
    local is_shown = only == queue or only == "" and index > first and index <= first + QUEUES_AT_MOST
    if is_shown then rows[#rows + 1] = queue_row(ctx, queue, waiting, by_queue[queue] or 0) end
  end
  for owner, tasks in pairs(by_owner) do owners[#owners + 1] = {owner, tasks} end
  table.sort(owners, function(one, other) return one[2] > other[2] or one[2] == other[2] and one[1] < other[1] end)
  return cjson.encode({now = now, queues = #rows > 0 and rows or nil, queue_count = #found, sampled = sampled,
    running = running, owners = #owners > 0 and owners or nil})
end)
