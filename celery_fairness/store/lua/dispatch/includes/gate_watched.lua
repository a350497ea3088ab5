--[[
  gate_watched: what becomes of tasks behind a gate, told while somebody watches (watch.lua).

  `gate_watched` has of each lease that began meanwhile when it did by the logical clock, the key under
  which its task is told, and the task as JSON. Whoever takes it out of there tells the end, so that is once.
]]
--- @include "watched"

-- Of a lease that ends while nobody watches the record stays; that of a watch long ago goes with the others.
local WATCHED_LEASES_MS = 86400000

local function tell_gate_attempt(prefix, what, job, key, lease, ...)
  append_watched_of(prefix, what, cjson.decode(job), key, "attempt", "",
    "owner", string.match(lease, "^([^@]+)@") or "", ...)
end

-- Who a task is charged to; `key` is that of its tenant's tier, "" without one.
local function tenant_of(key)
  return key ~= "" and key or "_system"
end

local function tell_gate_started(prefix, lease, job, key, logical)
  if job == "" then return end
  local named = tenant_of(key)
  tell_gate_attempt(prefix, "task.started", job, named, lease, "waited_seconds", "")
  redis.call("HSET", prefix .. "gate_watched", lease, string.format("%.0f %s\n%s", logical, named, job))
  redis.call("PEXPIRE", prefix .. "gate_watched", WATCHED_LEASES_MS)
end

local function tell_gate_ended(prefix, lease, outcome, logical)
  local record = redis.call("HGET", prefix .. "gate_watched", lease)
  if not record then return end
  redis.call("HDEL", prefix .. "gate_watched", lease)
  local since, key, job = string.match(record, "^(%d+) ([^\n]*)\n(.*)$")
  tell_gate_attempt(prefix, "task.ended", job, key, lease,
    "outcome", outcome, "ran_seconds", seconds_since(since, logical))
end
