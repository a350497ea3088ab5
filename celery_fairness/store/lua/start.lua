--[[
  serve: start the first task of a tenant that has room, or of one lane, and charge it.

  `rules` is as for judge, and owner, nonce, ends_at (of a lease that begins now), fairness_by, timed,
  virtual: by queue, the ring's time as far as this claim has read it; held: by key, how many leases it
  has, as far as this claim has counted them; limits: by word, as far as it has read them; and passed: by
  key, the time that no tag of it is behind, as far as it knows.
]]

-- What a task of a tenant is expected to take of whom nothing is known.
local FIRST_SECONDS = 1

-- What a task charges, before the weight.
function Start.expected_of(ctx, task, rules)
  if rules.fairness_by == "runtime" then
    return tonumber(redis.call("HGET", ctx.prefix .. "account:" .. task.key, "mean") or FIRST_SECONDS)
  end
  return rules.fairness_by == "cost" and tonumber(task.cost) or 1
end

-- Remembers how a task was charged, which its end puts right.
function Start.note_charge(ctx, queue, lease, expected, weight, finish, rules)
  if not rules.timed then redis.call("HSET", ctx.prefix .. "clock", "timed", 1) end
  rules.timed = true
  redis.call("HSET", ctx.prefix .. "charged", lease,
    string.format("%.17g %.17g %.0f %.17g ", expected, weight, rules.logical, finish) .. queue)
end

-- Returns the lease, the task, its message, and what it charges before the weight.
function Start.lease_task(ctx, queue, found, record, rules)
  local key, weight = found.key, found.verdict.weight
  local task, message, next_record = Tasks.start_record(record, key)
  local lease = task.tag .. "." .. task.attempt .. "." .. rules.nonce
  local expected = Start.expected_of(ctx, task, rules)
  if rules.queued then next_record = Pick.add_whole(ctx, queue, task, next_record, rules) end
  if task.limits ~= "" then
    Leases.take_limits(ctx, task, lease, rules, Start.charge_of(expected, weight), found)
  end
  if string.find(task.blocked, "|", 1, true) then Events.tell_unblocked(ctx, queue, task, message) end
  Leases.begin_lease(ctx, key, lease, rules)
  redis.call("ZADD", ctx.prefix .. "ends", rules.ends_at, lease)
  redis.call("HSET", ctx.prefix .. "running", lease,
    Tasks.write_running(rules.owner, "claimed", queue, next_record, Start.since_now(rules, task.kind)))
  return lease, task, message, expected
end

-- Returns nothing where somebody has deleted the lane: the others of the queue go on.
-- A tenant whose limit is full now stays in the ring: mostly a task has ended before it is its turn.
-- `found` says key, part, start and verdict; of what is parked too its lane, its group, the limit at which that
-- waits (name, limit_key), its tag there, when it was due there last (due), whether it is in `full` (is_out),
-- whether nothing else of the queue may be open (alone), and the ring's first as it was read (member).
function Start.serve(ctx, queue, found, rules, turns)
  local key, group, start, waiting = found.key, found.group, found.start, found.verdict.waiting
  local record, is_last, is_gone = Lanes.pop_part(ctx, queue, key, found.part, group, found.others, waiting)
  if not record then
    Lanes.leave_ring(ctx, queue, key)
    return nil
  end
  local lease, task, message, expected = Start.lease_task(ctx, queue, found, record, rules)
  Stats.note_start(rules, task, found.verdict.tier, queue)
  if rules.expiring then redis.call("ZREM", ctx.prefix .. "expires:" .. queue, task.tag) end
  local ring_at = rules.virtual[queue] or Active.virtual_time(ctx, queue)
  if start > ring_at then redis.call("HSET", ctx.prefix .. "virtual", queue, start) end
  rules.virtual[queue] = math.max(start, ring_at)
  -- Who was passed over and lags behind the ring has no credit for it; who was charged too much has.
  local by_runtime = rules.fairness_by == "runtime"
  local weight = found.verdict.weight
  local finish = (by_runtime and start or rules.virtual[queue]) + Start.charge_of(expected, weight)
  if by_runtime then Start.note_charge(ctx, queue, lease, expected, weight, finish, rules) end
  if group and (not is_gone
    or redis.call("ZSCORE", ctx.prefix .. "parked:" .. key .. " " .. queue, found.lane)) then
    Blocked.served(ctx, queue, found, task, turns, is_last)
  end
  if Lanes.task_left(ctx, queue, key, finish, waiting, rules.virtual[queue]) > 0 then
    local ring, full = ctx.prefix .. "ring:" .. queue, ctx.prefix .. "full:" .. queue
    if found.is_out then ring = full end
    redis.call("ZADD", ring, finish, key)
    if is_last and not group then
      Lanes.leave_ring(ctx, queue, key)
    elseif ctx.ranked then
      Priorities.rank_again(ctx, queue, key)
    end
  end
  return lease, task, message
end

--[[
  charging: what a task charges its tenant.
]]

-- A charge too small to move a tenant would let it run for ever, one without an end would stop it for
-- ever.
local LEAST_CHARGE, LARGEST_CHARGE = 1e-6, 1e6

function Start.charge_of(cost, weight)
  local charge = cost / weight
  -- Neither comparison holds for what is no number.
  if not (charge > LEAST_CHARGE) then return LEAST_CHARGE end
  return math.min(charge, LARGEST_CHARGE)
end

--[[
  correcting: a task that was charged an estimate has ended: its tenant's finish is put right by the
  time for which it held its place.

  `charged` says of a lease: the estimate in seconds, the tenant's weight, the logical time of the
  claim, the tenant's finish with this charge, and the queue of its ring.
]]

-- The part that the last run has in a tenant's mean is one of so many.
local MEAN_PARTS = 8

-- The mean is a tenant's with something waiting.
function Start.note_mean(ctx, key, seconds)
  local account = ctx.prefix .. "account:" .. key
  local known = redis.call("HMGET", account, "tenant", "mean")
  if not known[1] then return end
  local mean = tonumber(known[2])
  mean = mean and mean + (seconds - mean) / MEAN_PARTS or seconds
  redis.call("HSET", account, "mean", string.format("%.17g", mean))
end

-- Adds to a tenant's number in a table. Returns whether it has one there.
function Start.add_there(ctx, place, key, missing)
  local at = redis.call("ZSCORE", ctx.prefix .. place, key)
  if at then redis.call("ZADD", ctx.prefix .. place, tonumber(at) + missing, key) end
  return at
end

-- A tenant was charged too little, `missing`, when its finish in a queue became `finish`.
function Start.correct_finish(ctx, queue, key, finish, missing)
  if redis.call("HEXISTS", ctx.prefix .. "waiting", queue) == 0 then return end
  if Start.add_there(ctx, "ring:" .. queue, key, missing)
    or Start.add_there(ctx, "full:" .. queue, key, missing)
    or Start.add_there(ctx, "out:" .. queue, key, missing) then
    if ctx.ranked then Priorities.rank_again(ctx, queue, key) end
    return
  end
  -- Its debt is forgotten: it is not more than what was missing.
  local virtual = tonumber(redis.call("HGET", ctx.prefix .. "virtual", queue) or 0)
  finish = math.min(finish, virtual) + missing
  if finish > virtual then redis.call("ZADD", ctx.prefix .. "out:" .. queue, finish, key) end
end

function Start.correct(ctx, lease, key, keys, rules)
  local charged = redis.call("HGET", ctx.prefix .. "charged", lease)
  if not charged then return end
  redis.call("HDEL", ctx.prefix .. "charged", lease)
  local estimate, weight, since, finish, queue = string.match(charged, "^(%S+) (%S+) (%S+) (%S+) (.*)$")
  local seconds = math.max(0, (rules.logical - tonumber(since)) / 1000)
  local missing = Start.charge_of(seconds, tonumber(weight)) - Start.charge_of(tonumber(estimate), tonumber(weight))
  Start.note_mean(ctx, key, seconds)
  Start.correct_finish(ctx, queue, key, tonumber(finish), missing)
  if not rules.limited then return end
  for each in string.gmatch(keys, "[^,]+") do
    Start.add_there(ctx, "tags:" .. each, key, missing)
  end
end

--[[
  took: how long tasks of one kind hold their places, as far as this call has heard of ends.

  A row of `running` says since when its task holds its place, by the logical clock, and what tasks of
  its kind took lately, where that is known: "@MS" or "@MS~MEAN". It is known to a call that heard of the
  end of one, so the mean goes on from task to task and costs no command. Where ends are told by themselves,
  for places are free and no claim waits for one, `took` in the clock has it for the claims that come:
  "KIND~MEAN" of the last kinds, with spaces.
]]

-- The part that the last run has in a mean is one of so many.
local TOOK_PARTS = 8
-- Kinds that are kept between calls.
local TOOK_KINDS = 8

-- A task of a kind has ended well that held its place since then.
function Start.note_took(rules, kind, since)
  local began, mean = string.match(since, "^@(%d+)~?(%d*)$")
  -- The clock does not note its shortest steps, and the server's may have gone back.
  local took = math.max(0, rules.logical - tonumber(began))
  local means = rules.took or {}
  local known = means[kind] or tonumber(mean)
  if not means[kind] then means[#means + 1] = kind end
  means[kind] = known and known + (took - known) / TOOK_PARTS or took
  rules.took = means
end

-- Keeps what this call has heard for those that start tasks; `kept` is what was kept before.
function Start.keep_took(ctx, rules, kept)
  local means, words = rules.took, {}
  if not means then return end
  for index = 1, TOOK_KINDS do
    local kind = means[index]
    words[index] = kind and string.format("%s~%.0f", kind, means[kind])
  end
  kept = kept or ""
  for kind, mean in string.gmatch(kept, "([^ ~]*)~(%d+)") do
    if not means[kind] and #words < TOOK_KINDS then words[#words + 1] = kind .. "~" .. mean end
  end
  redis.call("HSET", ctx.prefix .. "clock", "took", table.concat(words, " "))
end

-- What the row of a task says that starts now.
function Start.since_now(rules, kind)
  local mean = rules.took and rules.took[kind]
  if not mean and rules.kept_took then
    for known, ms in string.gmatch(rules.kept_took, "([^ ~]*)~(%d+)") do
      if known == kind then mean = tonumber(ms) end
    end
  end
  rules.since = rules.since or string.format("@%.0f", rules.logical)
  return mean and rules.since .. string.format("~%.0f", mean) or rules.since
end
