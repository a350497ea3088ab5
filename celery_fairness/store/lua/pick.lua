--[[
  pick: the task that a claim takes next, of an active tenant or from a group whose limit has opened.

  The tenant with the lesser start goes first. If a tenant on the way is at its tier's limit, it becomes blocked.
  If a limit rejects a lane on the way, the lane is blocked. If this process takes nothing of a tenant, the tenant
  stays in its place.
]]

-- Looks at an active tenant, or at one that may be lent a place (is_lent). `turn` has the queue, the key of the tenant, its
-- start, and how many active members were passed from the first one that may be served only at a lower rank than its own
-- (beyond). It gets the fields that Start.start reads.
--
-- Returns "take" if the turn may be served. "next" goes on, "stop" ends the claim's look at the queue, and "pass" goes on
-- and leaves the member in its place.
function Pick.check_tenant(ctx, turn, rules, budget, skips)
  local queue, key, lane, others = turn.queue, turn.key, nil, nil
  if skips then
    lane, others = Lanes.first_taken(ctx, queue, key, skips)
    if not lane then
      -- A tenant with more lanes than one claim looks at hides no other tenant. The next claim goes on behind
      -- it.
      local passed = Pick.spend_skip(skips)
      if turn.is_lent then
        skips.places[queue] = skips.places[queue] or 0
      elseif passed and turn.beyond == 0 then
        skips.places[queue] = (skips.places[queue] or 0) + 1
      end
      local goes_on = passed and skips.lanes > 0
      budget.over = budget.over or not (goes_on or turn.is_lent)
      return goes_on and "pass" or "stop"
    end
  else
    local lanes = redis.call("ZRANGE", ctx.prefix .. Keys.READY .. key .. " " .. queue, 0, 1)
    lane, others = lanes[1], lanes[2] ~= nil
    if not lane then
      Stats.count_lost(ctx)
      Lanes.leave_active(ctx, queue, key)
      return "next"
    end
  end
  turn.lane, turn.others = lane, others
  local verdict, limits = Tenants.check(ctx, key, rules, queue), Lanes.first_limits(ctx, queue, key, lane)
  local may_start = verdict.open or turn.is_lent and verdict.lends
  local rejected = limits ~= "" and may_start and Limits.check(ctx, limits, rules)
  if may_start and not rejected then
    turn.verdict = verdict
    return "take"
  end
  if not Blocked.spend_move(budget) then return "stop" end
  if rejected and rejected.action then
    Blocked.drop_or_reschedule(ctx, turn, rejected, rules, budget)
  elseif rejected then
    Blocked.block_by_limit(ctx, turn, rejected, rules)
    Blocked.block(ctx, turn, rejected, rules, budget)
    turn.specs = limits
    -- A key saves nothing for a task that gives way to others.
    if not turn.is_lent then Saving.note_rejection(ctx, turn, rejected, rules, budget.queues) end
  else
    if not verdict.lends then Events.report_blocked(ctx, queue, key, lane, verdict, rules) end
    Tenants.block(ctx, queue, key, turn.start, verdict, rules)
  end
  return "next"
end

-- Returns the task that is served next, with the fields that Start.start reads. It returns nil if nothing of the queue
-- may start.
function Pick.pick(ctx, queue, rules, budget, skips)
  local known, beyond = budget.known, 0
  budget.known = nil
  if known and known.queue ~= queue then known = nil end
  local best = rules.limited and Blocked.of_groups(ctx, queue, rules, budget, skips, known) or nil
  for _ = 0, budget.looks do
    local at = (skips and skips.places[queue] or 0) + beyond
    local member = Active.member_at(ctx, queue, at, budget.ranked[queue])
    local key, start, rank = member[1], tonumber(member[2]), member[3]
    if not key or best and Lanes.goes_first(best, rank, start) then return best end
    local turn = {queue = queue, key = key, start = start, beyond = beyond}
    local step = Pick.check_tenant(ctx, turn, rules, budget, skips)
    local goes_on = step == "next" or step == "pass"
    if step == "take" then
      local its = skips and rank and Lanes.rank_in(ctx, Lanes.order_name(key, nil, queue), turn.lane)
      if not (its and its < rank) then return turn end
      -- This process takes no task of the rank by which this member stands. Other tenants may have tasks more
      -- urgent than the rest of this member.
      if not (best and Lanes.goes_first(best, its, start)) then best, turn.rank = turn, its end
      goes_on, beyond = Pick.spend_skip(skips), beyond + 1
    elseif step == "pass" and beyond > 0 then
      beyond = beyond + 1
    end
    if not goes_on then return best end
  end
  return best
end

-- As `find`, which is Pick.pick or Lending.pick. If the tenant was found closed before and is open, it is reopened here.
function Pick.next_of(ctx, find, queue, rules, budget, skips)
  local found = find(ctx, queue, rules, budget, skips)
  if not found then return nil end
  if found.verdict.closed and not found.verdict.lends then
    Tenants.unblock(ctx, found.key, rules)
    found.is_out = found.is_out and not redis.call("ZSCORE", ctx.prefix .. Keys.ACTIVE .. queue, found.key)
  end
  if found.verdict.full then Tenants.count_observed(ctx, queue, found.key, found.verdict, rules) end
  return found
end

--[[
  rounds: the order in which one claim takes turns of its queues, and how much of each its process takes.

  A process may have a share of its places for each queue. It sends what is left of each share as `rooms`.
  - In the first round each queue has turns until nothing of it may start or its room is used up.
  - The second round has the queues that left something to another queue (`budget.left`).
  - If places are lent, two more rounds have the queues whose room was used up before.
  So a queue with room goes first.

  A strict claim takes of the first queue until nothing of it may start or its room is used up. Then it takes of
  the second queue. If one limit keeps back tasks of both queues, a task of the first queue starts. No task is
  left to another queue, so `budget.left` is nil.
]]

-- Begins a round with those of some queues that have room. Each queue is in it once.
function Pick.begin_round(rounds, queues)
  local seen = {}
  rounds.turn, rounds.queues = 1, {}
  for index = 1, #queues do
    local queue = queues[index]
    if not seen[queue] and (rounds.rooms[queue] or 1) > 0 then rounds.queues[#rounds.queues + 1] = queue end
    seen[queue] = true
  end
end

-- `shares.rooms` holds by queue how many tasks are taken of it. A queue without an entry has no such limit.
function Pick.begin_rounds(queues, shares, budget)
  local rounds = {asked = queues, rooms = shares.rooms, lends = shares.lends, strict = shares.strict}
  if rounds.strict then budget.left = nil end
  Pick.begin_round(rounds, queues)
  return rounds
end

-- Returns the queue whose turn it is, or nil if no queue has one any more.
function Pick.queue_of(rounds, budget)
  if #rounds.queues == 0 and budget.left then
    Pick.begin_round(rounds, budget.left)
    budget.left = nil
  end
  if #rounds.queues == 0 and rounds.lends then
    local rooms, full = rounds.rooms, {}
    for index = 1, #rounds.asked do
      if rooms[rounds.asked[index]] == 0 then full[#full + 1] = rounds.asked[index] end
    end
    rounds.rooms = {}
    if not rounds.strict then budget.left = {} end
    Pick.begin_round(rounds, full)
  end
  if rounds.turn > #rounds.queues then rounds.turn = 1 end
  return rounds.queues[rounds.turn]
end

-- A task of the queue was taken, or nothing of it may start.
function Pick.end_turn(rounds, is_taken)
  local queue = rounds.queues[rounds.turn]
  local room = is_taken and rounds.rooms[queue]
  if room then rounds.rooms[queue] = room - 1 end
  if is_taken and room ~= 1 then
    if not rounds.strict then rounds.turn = rounds.turn + 1 end
  else
    table.remove(rounds.queues, rounds.turn)
  end
end

--[[
  passing: the tasks and tenants that one claim leaves in place for reasons of its own process alone.

  The claim sends the fields of `SkippedTasks` (`celery_fairness/scheduler/types.py`) as JSON, and "" is nothing.

  A queue may limit the slots that one process holds (`is_local`). If no name is passed over and no queue has such
  a limit, the claim runs no further command for this.

  Everything that is passed over keeps its place for all other processes.
]]

-- One claim passes over at most 16 tenants. It leaves at most 128 lanes of which
-- its process is full.
Pick.PASSED_AT_MOST = 16
local FULL_LANES_AT_MOST = 128

-- Returns two values:
-- - what the claim passes over, or nil if it passes over nothing
-- - all that the claim sent
function Pick.read_skips(sent, is_local)
  sent = sent or {never = {}, once = {}, places = {}, held = {}, rooms = {}}
  if not is_local and #sent.never + #sent.once == 0 then return nil, sent end
  local skips = {never = {}, once = {}, places = sent.places, held = sent.held, is_local = is_local,
    moves = Pick.PASSED_AT_MOST, lanes = FULL_LANES_AT_MOST}
  for index = 1, #sent.never do skips.never[sent.never[index]] = true end
  for index = 1, #sent.once do skips.once[sent.once[index]] = true end
  return skips, sent
end

-- A task was taken.
function Pick.note_taken(skips, task)
  if skips.once[task.name] then skips.never[task.name] = true end
  local keys = Tasks.keys_of(task.key, task.limits)
  for key in string.gmatch(keys, "[^,]+") do
    skips.held[key] = (skips.held[key] or 0) + 1
  end
end

-- Takes one move. Returns false if no move is left.
function Pick.spend_skip(skips)
  if skips.moves == 0 then return false end
  skips.moves = skips.moves - 1
  return true
end

--[[
  whole: the limit of a queue as a whole, checked before the claim looks at anything of the queue.

  If the limit is closed and lets tasks wait, nothing is blocked. The claim then passes by the queue, however much
  waits there. When a person, a time or the end of a lease opens the limit, the queue gets a wake-up (wake.lua).
]]

-- Returns whether one of some queues limits the slots that one process may hold.
function Pick.are_local(ctx, queues, rules)
  if rules.enforcement ~= "on" then return false end
  for index = 1, #queues do
    local row = Config.queue_row(ctx, queues[index])
    if row and (row.whole.local_limit or row.part and row.part.local_limit) then return true end
  end
  return false
end

-- Returns how a queue's limit rejects, as Limits.check does, or nil if the limit is open. If the claim passes by
-- the queue, one event names the task whose turn it would be. If this process holds as many slots as it may, it
-- returns the row of the queue.
function Pick.check_queue(ctx, queue, rules, budget, skips)
  local row = Config.queue_row(ctx, queue)
  local rejected = row and Limits.check(ctx, row.spec, rules)
  local most = row and row.whole.local_limit
  if most and not rejected and skips and skips.is_local and (skips.held[row.key] or 0) >= most then
    skips.places[queue] = skips.places[queue] or 0
    return row
  end
  if not rejected or rejected.action or budget.exhausted[queue] then return rejected or nil end
  budget.exhausted[queue] = true
  local wait = Limits.wait_ms(ctx, rejected, rules)
  budget.sleep_ms = math.min(budget.sleep_ms, math.ceil(wait))
  local key = Active.member_at(ctx, queue, 0, budget.ranked[queue])[1]
  local lane = key and Lanes.first_lane(ctx, queue, key)
  if lane then Blocked.block_by_limit(ctx, {queue = queue, key = key, lane = lane}, rejected, rules) end
  return rejected
end

-- Returns the limits of a task that starts, with that of its queue. The task has that limit while it runs.
function Pick.with_queue_limit(ctx, queue, limits)
  local row = Config.queue_row(ctx, queue)
  if not row then return limits end
  return limits == "" and row.spec or limits .. "," .. row.spec
end

-- Looks at the limits of queues that were found closed by older numbers of the queue, or before a pattern changed. It
-- looks at most `most` times per queue and reason. Returns whether there may be more.
function Pick.check_again(ctx, queues, rules, most)
  local more = false
  for index = 1, #queues do
    local queue = queues[index]
    local row = Config.queue_row(ctx, queue)
    local version = row and row.version or rules.promotes and Config.queues_version(ctx)
    local changed = ctx.looks_again and redis.call("HGET", ctx.prefix .. Keys.QUEUE_LIMITS, "look " .. queue)
    if changed then version = math.max(version or 0, changed) end
    -- A limit that is neither a partition's nor was closed since a pattern changed has no version.
    local to, left = changed and "" or "(", false
    for closed = version and Blocked.PAUSED or 0, Blocked.CLOSED do
      local older = string.format("(%.17g", closed - version / Blocked.VERSIONS)
      left = Blocked.check_again(ctx, queue, older, to .. closed, rules, most) == most or left
    end
    if changed and not left then Wake.has_looked(ctx, queue) end
    more = more or left
  end
  return more
end
