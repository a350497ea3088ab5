--[[
  gate_here: how many tasks of a queue, or of one of its partitions, one worker runs behind a gate.

  A lease of a gate is named WORKER@REST, and `here:KEY WORKER` has those that the worker runs, each with
  the logical time of the last look at it. Whether one lives `leases:KEY` says alone: whoever renews,
  frees or ends leases needs to know nothing of this, and where no number is said none of it is kept.

  " VERSION ENTERED" stands there without a time: all are there that began since that version of the
  queue's numbers was said, and since leases were entered again (renew.lua) so often. When it is another,
  the worker's leases are looked for in `leases:KEY`, the first KNOWN_AT_MOST of it.
]]

-- Leases of the key among which those of the worker are looked for, and of the worker that one call judges.
local KNOWN_AT_MOST, LOOK_AT_MOST = 1000, 256

-- Finds what the worker runs already.
function WorkerLimit.know_here(ctx, limit, worker, since, rules)
  local here, found = ctx.prefix .. "here:" .. limit.key .. " " .. worker, {"+inf", since}
  local held = redis.call("ZRANGEBYSCORE", ctx.prefix .. "leases:" .. limit.key,
    "(" .. Rates.whole(rules.logical), "+inf", "LIMIT", 0, KNOWN_AT_MOST)
  for index = 1, #held do
    if string.match(held[index], "^([^@]+)@") == worker then
      found[#found + 1] = rules.logical
      found[#found + 1] = held[index]
    end
  end
  redis.call("ZREMRANGEBYSCORE", here, "+inf", "+inf")
  redis.call("ZADD", here, unpack(found))
  redis.call("PEXPIRE", here, Leases.KEEP_LEASES_MS)
end

-- How many of its leases of a limit a worker holds. Those that have ended are looked for where it holds as
-- many as it may, first those that nobody has looked at for longest: of more than LOOK_AT_MOST some may
-- count until the next calls have looked at them.
function WorkerLimit.held_here(ctx, limit, worker, rules)
  local here = ctx.prefix .. "here:" .. limit.key .. " " .. worker
  local since = " " .. Rates.whole(limit.version) .. " " .. (rules.entered or 0)
  if not redis.call("ZSCORE", here, since) then WorkerLimit.know_here(ctx, limit, worker, since, rules) end
  local held = redis.call("ZCARD", here) - 1
  if held < math.max(1, limit.of_process) then return held end
  local some = redis.call("ZRANGEBYSCORE", here, "-inf", "(+inf", "LIMIT", 0, LOOK_AT_MOST)
  local ends = redis.call("ZMSCORE", ctx.prefix .. "leases:" .. limit.key, unpack(some))
  local lives = {}
  for index = 1, #some do
    if ends[index] and tonumber(ends[index]) > rules.logical then
      lives[#lives + 1] = rules.logical
      lives[#lives + 1] = some[index]
    else
      held = held - redis.call("ZREM", here, some[index])
    end
  end
  if #lives > 0 then redis.call("ZADD", here, unpack(lives)) end
  return held
end

-- Counts what the worker of a lease holds of limits that say how much that may be. Returns what refuses
-- the lease, as `refusal` says it; nil where nothing does. A task goes back to its broker then, for another
-- worker may run it: first after a second, and so many in each as the worker may run.
function WorkerLimit.crowded_here(ctx, limits, lease, rules)
  local worker, closed = string.match(lease, "^([^@]+)@"), nil
  for index = 1, #limits do
    local limit = limits[index]
    if worker and limit.of_process then
      local held = WorkerLimit.held_here(ctx, limit, worker, rules)
      limit.worker = worker
      if held >= limit.of_process and not closed then
        closed = Limits.refused_by({key = limit.key, name = limit.name}, "r", limit, Backoff.TRY_AGAIN_MS, "here", math.huge)
        -- Its worker's pace, not that of the key.
        closed.says = {key = limit.key .. " " .. worker, concurrency = math.max(1, limit.of_process),
          rates = "", throttle = ""}
        closed.at = {key = limit.key, strategy = "concurrency", limit = limit.of_process, current = held}
      end
    end
  end
  return closed
end

-- A task starts that has `limit`; what one worker runs of it is counted whatever is enforced.
function WorkerLimit.begin_limit(ctx, limit, lease, rules)
  Leases.begin_slot(ctx, limit, lease, rules)
  if not limit.worker then return end
  local here = ctx.prefix .. "here:" .. limit.key .. " " .. limit.worker
  redis.call("ZADD", here, rules.logical, lease)
  redis.call("PEXPIRE", here, Leases.KEEP_LEASES_MS)
end
