--[[
  freed: since when a tenant has a free slot while a task of it waits for its snooze.

  freed_key  string  "" since the tier last rejected a task, because no slot was free then; otherwise the
                     server's time (ms) at which a slot was given back last

  A tenant whose tier has not rejected a task for long has no such key: to give a slot back costs one EXISTS.
]]

-- The key that lies beside the leases of a tenant's tier.
local function freed_of(leases)
  return (string.gsub(leases, "leases:", "freed:", 1))
end

-- What was rejected comes back within keep_ms.
local function note_rejected(freed_key, keep_ms)
  redis.call("SET", freed_key, "", "PX", keep_ms)
end

local function note_freed(freed_key)
  if redis.call("EXISTS", freed_key) == 0 then return end
  local time = redis.call("TIME")
  local now = string.format("%.0f", time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call("SET", freed_key, now, "KEEPTTL")
end
