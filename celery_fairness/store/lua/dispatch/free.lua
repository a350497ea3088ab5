--[[
  free: end leases of a gate, or what was promised to a task that ended before it came to a gate, and
  have the tasks looked at that wait for these. Twice is harmless, and so is what is gone.

  KEYS[1]  prefix    str  what every key of the installation begins with

  ARGV[1]  what      str  "leases"; "died" where nobody but their processes could end them; "promises"
  ARGV[2]  lease_ms  int  how long a lease lives without a renewal
  ARGV[3]  frozen_ms str  "" in production (server TIME); set only by tests
  ARGV[4+] pairs     str  a lease, or the tag of a task, and a key of it, as often as there are slots

  Returns how many were held.
]]
--- @include "clock"
--- @include "gate_watched"
--- @include "pace"
--- @include "gate_parked"
--- @include "freed"
local prefix, what, lease_ms, frozen_ms = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]

local logical, _, _, said = read_clock(prefix .. "clock", lease_ms, frozen_ms)
local rules = {logical = logical}
local freed, wakes, limits = 0, false, {}
for index = 4, #ARGV - 1, 2 do
  local holder, key, held = ARGV[index], ARGV[index + 1], nil
  if what ~= "promises" then
    held = redis.call("ZREM", prefix .. "leases:" .. key, holder)
    if said.watched then tell_gate_ended(prefix, holder, what == "died" and what or "done", logical) end
    if string.sub(key, 1, 7) ~= "tenant:" then
      if said.paced then note_end(prefix, holder, key, rules) end
      limits[#limits + 1] = key
    end
  else
    held = redis.call("ZREM", prefix .. "gate_promised:" .. key, holder)
    redis.call("ZREM", prefix .. "gate_promoted", holder)
  end
  freed = freed + held
  if held == 1 and what ~= "promises" and string.sub(key, 1, 7) == "tenant:" then
    note_freed(prefix .. "freed:" .. key)
  end
  if said.parked and held == 1 then
    wakes = redis.call("ZADD", prefix .. "gate_looks", "XX", "LT", "CH", whole(logical), key) == 1 or wakes
  end
end
stay_known(prefix, limits, logical)
if wakes then ring_gate(prefix) end
return freed
