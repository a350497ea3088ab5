--[[
  free: end leases of limits at which tasks of a gate may wait, or what was promised to a task that
  ended before it came to a gate, and have these looked at. Twice is harmless, and so is what is gone.

  KEYS[1]  prefix    str  what every key of the installation begins with

  ARGV[1]  what      str  "leases" or "promises"
  ARGV[2+] pairs     str  a lease, or the tag of a task, and a key of it, as often as there are slots

  Returns how many were held.
]]
--- @include "starts"
--- @include "gate_parked"
local prefix, what = KEYS[1], ARGV[1]

local parked = redis.call("HEXISTS", prefix .. "clock", "parked") == 1
local freed, wakes = 0, false
for index = 2, #ARGV - 1, 2 do
  local holder, key, held = ARGV[index], ARGV[index + 1], 0
  if what == "leases" then
    held = redis.call("ZREM", prefix .. "leases:" .. key, holder)
  else
    held = redis.call("ZREM", prefix .. "gate_promised:" .. key, holder)
    redis.call("ZREM", prefix .. "gate_promoted", holder)
  end
  freed = freed + held
  if parked and held == 1 then
    wakes = redis.call("ZADD", prefix .. "gate_opens", "XX", "CH", 0, key) == 1 or wakes
  end
end
if wakes then ring_gate(prefix) end
return freed
