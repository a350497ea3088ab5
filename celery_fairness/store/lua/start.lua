--[[
  start: the first task of a tenant that has room, or of one lane, gets a lease, and its tenant is charged.

  `rules` is as for `Tenants.check`, with these fields besides:
  - owner, nonce, ends_at (of a lease that begins now) and fairness_by
  - promotes: the claim promotes parked tasks, and their copies are remembered for this time (ms)
  - lets_all_start: it does so for a worker that enforces nothing
]]

-- A task of a tenant without a mean is expected to take this long.
local FIRST_SECONDS = 1

-- Returns what a task charges, before the weight. `mean` is that of its tenant, or nil without one.
function Start.expected_of(fairness_by, cost, mean)
  if fairness_by == "runtime" then return tonumber(mean or FIRST_SECONDS) end
  return fairness_by == "cost" and tonumber(cost) or 1
end

-- Returns for how many ms a task waited, or "", then a space, and the key of the limit that rejected it, or "".
function Start.waited(task, rules)
  local put = string.match(task.put, "^%d+")
  local waited = put and string.format("%.0f", math.max(0, rules.now - put)) or ""
  return waited .. " " .. (string.match(task.blocked, "|(.*)$") or "")
end

-- Returns the lease and the message. `expected` is what the task charges before the weight. `charge` is the text by
-- which its end corrects that, or "".
function Start.lease_task(ctx, found, task, expected, charge, rules)
  local key, weight = found.key, found.verdict.weight
  task.attempt = task.attempt + 1
  local lease = task.tag .. "." .. task.attempt .. "." .. rules.nonce
  if rules.limited then task.limits = Pick.with_queue_limit(ctx, found.queue, task.limits) end
  if task.limits ~= "" then
    Leases.take_limits(ctx, task, lease, rules, Start.attribution_of(expected, weight), found.verdict)
  elseif found.verdict.pace then
    Leases.take_pace(ctx, lease, rules, found.verdict)
  end
  if rules.promotes then
    Copies.copy_promoted(ctx, task, lease, rules.promotes)
  elseif string.find(task.blocked, "|", 1, true) then
    Events.emit_released(ctx, task, task.blocked)
  end
  Slots.take(ctx, key, lease, rules)
  local keys, amounts = Tasks.keys_of(key, task.limits), task.amounts
  if redis.call("ZADD", ctx.prefix .. Keys.ENDS, rules.ends_at, lease) == 0 then
    keys, amounts = Leases.join_held(ctx, lease, keys, amounts)
  end
  Tasks.write_running(ctx, task.tag, {attempt = task.attempt, nonce = rules.nonce, owner = rules.owner,
    state = rules.promotes and "promoted" or "claimed", since = Start.since_now(ctx, rules, task.name), keys = keys,
    amounts = amounts, charge = charge, name = task.name, id = task.id, queue = ""})
  return lease, Tasks.message_of(ctx, task.tag)
end

-- Returns nothing if the task has expired, or if its lane or record is lost. The claim goes on. If the limit of a
-- tenant is full now, the tenant stays active. Mostly a task has ended before the tenant's next turn.
-- `found` has queue, key, lane, start and verdict. For a blocked lane it has these fields too:
-- - its group, and the limit at which the group waits (name, limit_key)
-- - whether the tenant is in `blocked` (is_out)
-- - whether nothing else of the queue may be open (alone)
function Start.start(ctx, found, rules, budget)
  local queue, key, group, start = found.queue, found.key, found.group, found.start
  found.waiting = found.verdict.waiting
  local keys = Saving.started(ctx, found)
  local tag, is_last = Lanes.pop(ctx, found)
  local task = tag and Tasks.read(ctx, tag)
  if not task then
    Stats.count_lost(ctx)
    Lanes.leave_active(ctx, queue, key)
    return nil
  end
  local expires = rules.expiring and redis.call("ZSCORE", ctx.prefix .. Keys.EXPIRES .. queue, tag)
  if expires and tonumber(expires) <= rules.now then
    Lanes.task_left(ctx, found)
    Lanes.leave_active(ctx, queue, key)
    Schedule.expire(ctx, task, rules)
    Saving.look_again(ctx, keys)
    budget.over = true
    return nil
  end
  if expires and not rules.promotes then redis.call("ZREM", ctx.prefix .. Keys.EXPIRES .. queue, tag) end
  local ring_at = ctx.memo.virtual[queue] or Active.virtual_time(ctx, queue)
  if start > ring_at then
    redis.call("HSET", ctx.prefix .. Keys.VIRTUAL_TIMES, "queue " .. queue, start)
    ctx.result.clears[queue] = true
  end
  ctx.memo.virtual[queue] = math.max(start, ring_at)
  -- A tenant that was passed over and lags behind the virtual time gets no credit for that. If fairness is by runtime,
  -- a tenant that was charged too much gets credit.
  local by_runtime = rules.fairness_by == "runtime"
  local weight = found.verdict.weight
  local mean = by_runtime and redis.call("HGET", ctx.prefix .. Keys.TENANT_STATE .. key, "mean")
  local expected = Start.expected_of(rules.fairness_by, task.cost, mean)
  local finish = (by_runtime and start or ctx.memo.virtual[queue]) + Start.attribution_of(expected, weight)
  local charge = by_runtime and not rules.promotes and string.format("%.17g|%.17g|%.17g", expected, weight, finish) or ""
  local lease, message = Start.lease_task(ctx, found, task, expected, charge, rules)
  if not rules.promotes then Stats.note_start(ctx, rules, task, found.verdict.tier, queue) end
  if group and not is_last then Blocked.note_start(ctx, found, task, budget) end
  found.finish = finish
  local left = Lanes.task_left(ctx, found)
  Aging.note_start(ctx, queue, key, task.rank, left == 0, rules)
  if left > 0 then
    redis.call("ZADD", ctx.prefix .. (found.is_out and Keys.BLOCKED or Keys.ACTIVE) .. queue, finish, key)
    if is_last and not group then
      Lanes.leave_active(ctx, queue, key)
    else
      Active.note_place(ctx, queue, key)
    end
  else
    ctx.result.clears[queue] = true
  end
  return lease, task, message
end

--[[
  charging: what a task charges its tenant.
]]

-- A charge too small to move a tenant would let it run for ever. An infinite charge would stop it for ever.
local LEAST_CHARGE, LARGEST_CHARGE = 1e-6, 1e6

function Start.attribution_of(cost, weight)
  local charge = cost / weight
  -- No comparison holds for a NaN, so this form catches it too.
  if not (charge > LEAST_CHARGE) then return LEAST_CHARGE end
  return math.min(charge, LARGEST_CHARGE)
end

--[[
  correcting: a task with an estimated charge has ended, and the finish of its tenant is corrected.

  The correction uses the time for which the task held its place. The row of `running` has the charge as
  ESTIMATE|WEIGHT|FINISH: the estimate in seconds, the tenant's weight, and the tenant's finish with this charge.
]]

-- The last run counts as one part in this many in the mean of a tenant.
local MEAN_PARTS = 8

-- A tenant has a mean only while something of it waits.
function Start.note_mean(ctx, key, seconds)
  local tenant_state = ctx.prefix .. Keys.TENANT_STATE .. key
  local known = redis.call("HMGET", tenant_state, "tenant", "mean")
  if not known[1] then return end
  local mean = tonumber(known[2])
  mean = mean and mean + (seconds - mean) / MEAN_PARTS or seconds
  redis.call("HSET", tenant_state, "mean", string.format("%.17g", mean))
end

-- Adds to the number of a tenant in a table. Returns its former number there, or false if it had none.
function Start.add_there(ctx, place, key, missing)
  local at = redis.call("ZSCORE", ctx.prefix .. place, key)
  if at then redis.call("ZADD", ctx.prefix .. place, tonumber(at) + missing, key) end
  return at
end

-- A tenant was charged too little by `missing`, when its finish in a queue became `finish`.
function Start.correct_finish(ctx, queue, key, finish, missing)
  if redis.call("HEXISTS", ctx.prefix .. Keys.WAITING, queue) == 0 then return end
  if Start.add_there(ctx, Keys.ACTIVE .. queue, key, missing)
    or Start.add_there(ctx, Keys.BLOCKED .. queue, key, missing)
    or Start.add_there(ctx, Keys.DEBTS .. queue, key, missing) then
    Active.note_place(ctx, queue, key)
    return
  end
  -- The debt of this tenant was forgotten. So its new debt is not more than what was missing.
  local virtual = Active.virtual_time(ctx, queue)
  finish = math.min(finish, virtual) + missing
  if finish > virtual then redis.call("ZADD", ctx.prefix .. Keys.DEBTS .. queue, finish, key) end
end

function Start.correct(ctx, task, row, rules)
  if row.charge == "" then return end
  local estimate, weight, finish = string.match(row.charge, "^([^|]+)|([^|]+)|(.+)$")
  local key, since = task.key, tonumber(string.match(row.since, "^@(%d+)"))
  local seconds = math.max(0, (rules.logical - since) / 1000)
  local missing = Start.attribution_of(seconds, tonumber(weight)) - Start.attribution_of(tonumber(estimate), tonumber(weight))
  Start.note_mean(ctx, key, seconds)
  Start.correct_finish(ctx, task.queue, key, tonumber(finish), missing)
  if not rules.limited then return end
  for each in string.gmatch(row.keys, "[^,]+") do
    Start.add_there(ctx, Keys.FINISH_TAGS .. each, key, missing)
  end
end

--[[
  The run times: how long tasks of one name hold their places, from the ends that this call has received.

  A row of `running` holds the logical time since which its task holds its place. It also holds the mean time of
  the last tasks of its name, if there is one. The text is "@MS" or "@MS~MEAN". A call that receives the end of a
  task reads that mean. So the mean goes on from task to task and costs no command.

  If places are free, no claim waits for an end, and ends are sent in a call of their own. Then `run_times` in the
  clock has the means for later claims. It is "NAME~MEAN" of the last names, with spaces between them.
]]

-- The last run counts as one part in this many in a mean.
local RUN_TIME_PARTS = 8
-- This many names are kept between calls.
local RUN_TIME_NAMES = 8

-- A task of this name has ended well. It held its place since `since`.
function Start.note_run_time(ctx, rules, name, since)
  local began, mean = string.match(since, "^@(%d+)~?(%d*)$")
  -- The clock does not note its shortest steps, and the server's clock may have gone back.
  local took = math.max(0, rules.logical - tonumber(began))
  local means = ctx.result.run_times or {}
  local known = means[name] or tonumber(mean)
  if not means[name] then means[#means + 1] = name end
  means[name] = known and known + (took - known) / RUN_TIME_PARTS or took
  ctx.result.run_times = means
end

-- Keeps what this call has received for the calls that start tasks. `kept` is what was kept before.
function Start.keep_run_times(ctx, kept)
  local means, texts = ctx.result.run_times, {}
  if not means then return end
  for index = 1, RUN_TIME_NAMES do
    local name = means[index]
    texts[index] = name and string.format("%s~%.0f", name, means[name])
  end
  kept = kept or ""
  for name, mean in string.gmatch(kept, "([^ ~]*)~(%d+)") do
    if not means[name] and #texts < RUN_TIME_NAMES then texts[#texts + 1] = name .. "~" .. mean end
  end
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "run_times", table.concat(texts, " "))
end

-- Returns the text that the row of a task has when the task starts now.
function Start.since_now(ctx, rules, name)
  local means = ctx.result.run_times
  local mean = means and means[name]
  if not mean and rules.kept_run_times then
    for known, ms in string.gmatch(rules.kept_run_times, "([^ ~]*)~(%d+)") do
      if known == name then mean = tonumber(ms) end
    end
  end
  return string.format("@%.0f", rules.logical) .. (mean and string.format("~%.0f", mean) or "")
end
