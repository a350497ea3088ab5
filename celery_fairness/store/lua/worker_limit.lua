--[[
  gate_here: how many tasks of a queue, or of one of its partitions, one worker runs behind a gate.

  A lease of a gate is named `WORKER@REST`. `here:KEY WORKER` holds the leases that the worker runs, each with the
  logical time of the last look at it. Only `leases:KEY` decides whether a lease lives. So the calls that renew,
  free or end leases need nothing of this. If a queue has no limit per worker, none of it is kept.

  The entry " VERSION ENTERED" has no time (its score is +inf). VERSION is that of the queue's numbers. ENTERED is
  how often leases were entered again (renew.lua). The key holds all leases that began since then. If the key has
  no such entry, the worker's leases are looked up in `leases:KEY`, in its first KNOWN_AT_MOST.
]]

-- A call looks for leases of the worker among at most 1,000 leases of the key. It judges at most 256 leases of
-- the worker.
local KNOWN_AT_MOST, LOOK_AT_MOST = 1000, 256

-- Finds the leases that the worker runs already.
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

-- Returns how many leases of a limit a worker holds. If it holds as many as it may, the call looks for leases
-- that have ended. It begins with those that no call has looked at for longest. If there are more than
-- LOOK_AT_MOST, some ended leases count until later calls have looked at them.
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

-- Counts the leases that the worker holds of limits that have a limit per worker. Returns what rejects the
-- lease, as `refusal` does, or nil if nothing does. A rejected task goes back to its broker, because another
-- worker may run it. The first tasks come again after a second. Each second brings as many tasks as the worker
-- may run.
function WorkerLimit.crowded_here(ctx, limits, lease, rules)
  local worker, closed = string.match(lease, "^([^@]+)@"), nil
  for index = 1, #limits do
    local limit = limits[index]
    if worker and limit.of_process then
      local held = WorkerLimit.held_here(ctx, limit, worker, rules)
      limit.worker = worker
      if held >= limit.of_process and not closed then
        closed = Limits.refused_by({key = limit.key, name = limit.name}, "r", limit, Backoff.TRY_AGAIN_MS, "here", math.huge)
        -- The pace is that of the worker, not that of the key.
        closed.says = {key = limit.key .. " " .. worker, concurrency = math.max(1, limit.of_process),
          rates = "", throttle = ""}
        closed.at = {key = limit.key, strategy = "concurrency", limit = limit.of_process, current = held}
      end
    end
  end
  return closed
end

-- A task starts that has `limit`. The tasks that one worker runs of it are counted even if limits are not
-- enforced.
function WorkerLimit.begin_limit(ctx, limit, lease, rules)
  Leases.begin_slot(ctx, limit, lease, rules)
  if not limit.worker then return end
  local here = ctx.prefix .. "here:" .. limit.key .. " " .. limit.worker
  redis.call("ZADD", here, rules.logical, lease)
  redis.call("PEXPIRE", here, Leases.KEEP_LEASES_MS)
end
