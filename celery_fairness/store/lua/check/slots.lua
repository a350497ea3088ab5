--[[
  slots: each task that runs has an end and counts at each of its keys, and nothing else counts without an end.

  A lease of the gate ends by itself, so it needs no row in `running`.
]]

function Slots.running(it, _, tag)
  local ctx = it.ctx
  local text = redis.call("HGET", ctx.prefix .. "running", tag)
  if not text then return end
  local row = Tasks.read_row(text)
  local lease = tag .. "." .. row.attempt .. "." .. row.nonce
  if not redis.call("ZSCORE", ctx.prefix .. "ends", lease) then
    Check.found(it, "task_without_end", "running", tag, function()
      redis.call("ZADD", ctx.prefix .. "ends", it.rules.logical + it.rules.lease_ms, lease)
    end)
  end
  for key in string.gmatch(row.keys, "[^,]+") do
    local leases = "leases:" .. key
    if redis.call("ZSCORE", ctx.prefix .. leases, lease) ~= "inf" then
      Check.found(it, "task_not_counted", leases, lease, function()
        redis.call("ZADD", ctx.prefix .. leases, "+inf", lease)
      end)
    end
  end
end

function Slots.lease(it, key, lease)
  local leases = it.ctx.prefix .. "leases:" .. key
  if redis.call("ZSCORE", leases, lease) ~= "inf" then return end
  local row = Tasks.read_running(it.ctx, lease)
  if row and string.find("," .. row.keys .. ",", "," .. key .. ",", 1, true) then return end
  Check.found(it, "slot_without_task", "leases:" .. key, lease, function()
    redis.call("ZREM", leases, lease)
    Leases.freed(key, it.rules)
    Leases.open_freed(it.ctx, it.rules)
  end)
end
