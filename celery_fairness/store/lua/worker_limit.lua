--[[
  worker_limit: how many tasks of a queue, or of one of its partitions, one worker runs behind a gate.

  `local_leases:KEY` counts by worker the leases of a queue's key whose task is not here (leases.lua). A claim needs no such
  count, because a worker of this broker sends with the claim how many it holds.
]]

-- A lease begins (by 1) or has ended (by -1).
function WorkerLimit.count(ctx, row, by)
  if row.owner == "-" or not string.find(row.keys, "queue:", 1, true) then return end
  for key in string.gmatch("," .. row.keys, ",(queue:[^,]+)") do
    if redis.call("HINCRBY", ctx.prefix .. Keys.LOCAL_LEASES .. key, row.owner, by) <= 0 then
      redis.call("HDEL", ctx.prefix .. Keys.LOCAL_LEASES .. key, row.owner)
    end
  end
end

-- Returns what rejects a lease because its worker runs as many tasks as it may, as Limits.check does, or nil if
-- nothing does. A rejected task goes back to its broker, because another worker may run it. The first tasks come
-- again after a second. Each second brings as many tasks as the worker may run.
function WorkerLimit.check(ctx, limits, lease)
  local worker = Leases.worker_of(lease)
  for index = 1, worker and #limits or 0 do
    local limit = limits[index]
    local held = limit.local_limit and tonumber(redis.call("HGET", ctx.prefix .. Keys.LOCAL_LEASES .. limit.key, worker) or 0)
    if held and held >= limit.local_limit then
      local closed = Limits.note_rejection(
        {key = limit.key, name = limit.name}, "r", limit, Backoff.TRY_AGAIN_MS, "here", math.huge)
      -- The backoff is that of the worker, not that of the key.
      closed.says = Numbers.set({key = limit.key .. " " .. worker}, "C" .. math.max(1, limit.local_limit))
      closed.at = {key = limit.key, strategy = "concurrency", limit = limit.local_limit, current = held}
      return closed
    end
  end
end
