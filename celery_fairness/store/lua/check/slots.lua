--[[
  slots: each lease has a row, has an end and counts at each of its keys, and nothing else counts.
]]

function Slots.running(it, _, field)
  local ctx = it.ctx
  local text = redis.call("HGET", ctx.prefix .. "running", field)
  if not text then return end
  local row = Tasks.read_row(text)
  local lease = row.state == "held" and field or field .. "." .. row.attempt .. "." .. row.nonce
  if not redis.call("ZSCORE", ctx.prefix .. "ends", lease) then
    Check.found(it, "task_without_end", "running", field, function()
      redis.call("ZADD", ctx.prefix .. "ends", it.rules.logical + it.rules.lease_ms, lease)
    end)
  end
  for key in string.gmatch(row.keys, "[^,]+") do
    local leases = "leases:" .. key
    if not redis.call("ZSCORE", ctx.prefix .. leases, lease) then
      Check.found(it, "task_not_counted", leases, lease, function()
        Leases.begin_lease(ctx, key, lease, it.rules)
      end)
    end
  end
end

function Slots.lease(it, key, lease)
  local leases = it.ctx.prefix .. "leases:" .. key
  if not redis.call("ZSCORE", leases, lease) then return end
  local row = Tasks.read_running(it.ctx, lease) or Tasks.read_held(it.ctx, lease)
  if row and string.find("," .. row.keys .. ",", "," .. key .. ",", 1, true) then return end
  Check.found(it, "slot_without_task", "leases:" .. key, lease, function()
    redis.call("ZREM", leases, lease)
    Leases.freed(key, it.rules)
    Leases.open_freed(it.ctx, it.rules)
  end)
end
