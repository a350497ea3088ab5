--[[
  gate_put: tell that another broker is given a task, while somebody watches (watch.lua). Its rank is
  that broker's own matter.

  KEYS[1]  prefix     str  what every key of the installation begins with

  ARGV[1]  job        str  the task's id, name and queue as JSON
  ARGV[2]  key        str  of its tenant's tier limit; "" is a system task
  ARGV[3]  tier       str  its tenant's, as the message says it
  ARGV[4]  cost       str  units that it is charged
  ARGV[5]  eta_ms     int  server time before which it does not start; 0: none
  ARGV[6]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns how many were told: none where nobody watches.
]]
--- @include "now"
--- @include "gate_watched"
local prefix, job, key, tier = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local cost, eta_ms, frozen_ms = ARGV[4], tonumber(ARGV[5]), ARGV[6]

local now = server_now(frozen_ms)
local watched, told = tonumber(redis.call("HGET", prefix .. "clock", "watched") or 0), 0
if watched > now then
  append_watched_of(prefix, "task.put", cjson.decode(job), tenant_of(key), "tier", tier,
    "cost", cost, "rank", "", "eta", string.format("%.0f", math.max(now, eta_ms)))
  told = 1
end
return told
