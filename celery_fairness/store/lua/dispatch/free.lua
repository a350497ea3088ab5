--[[
  free: end leases of limits at which tasks of a gate may wait, and have these looked at. Twice is
  harmless, and so is a lease that is gone.

  KEYS[1]  prefix    str  what every key of the installation begins with

  ARGV[1+] pairs     str  a lease and a key of it, as often as there are slots

  Returns how many were held.
]]
--- @include "starts"
--- @include "gate_parked"
local prefix = KEYS[1]

local parked = redis.call("HEXISTS", prefix .. "clock", "parked") == 1
local freed, wakes = 0, false
for index = 1, #ARGV - 1, 2 do
  local lease, key = ARGV[index], ARGV[index + 1]
  local held = redis.call("ZREM", prefix .. "leases:" .. key, lease)
  freed = freed + held
  if parked and held == 1 then
    wakes = redis.call("ZADD", prefix .. "gate_opens", "XX", "CH", 0, key) == 1 or wakes
  end
end
if wakes then ring_gate(prefix) end
return freed
