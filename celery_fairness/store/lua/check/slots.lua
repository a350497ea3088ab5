--[[
  slots: each task that runs has an end and counts at each of its keys, and nothing else counts without an end.

  A lease of the gate ends by itself, so it needs no row in `running`.
]]

function Slots.running(it, _, lease)
  local ctx = it.ctx
  local row = redis.call("HGET", ctx.prefix .. "running", lease)
  if not row then return end
  local _, _, keys = Tasks.charged_by(row)
  if not redis.call("ZSCORE", ctx.prefix .. "ends", lease) then
    Check.found(it, "task_without_end", "running", lease, function()
      redis.call("ZADD", ctx.prefix .. "ends", it.rules.logical + it.rules.lease_ms, lease)
    end)
  end
  for key in string.gmatch(keys, "[^,]+") do
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
  local row = redis.call("HGET", it.ctx.prefix .. "running", lease)
  local _, _, keys = nil, nil, ""
  if row then _, _, keys = Tasks.charged_by(row) end
  if string.find("," .. keys .. ",", "," .. key .. ",", 1, true) then return end
  Check.found(it, "slot_without_task", "leases:" .. key, lease, function()
    redis.call("ZREM", leases, lease)
    Leases.freed(key, it.rules)
    Leases.open_freed(it.ctx, it.rules)
  end)
end
