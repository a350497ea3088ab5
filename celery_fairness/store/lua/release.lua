--[[
  release: end leases, named one by one. Twice is harmless, and so is a lease that is gone.

  KEYS[1+] leases     zset  lease id -> logical end (ms); one key for each lease, repeats allowed

  ARGV[1+] lease_ids  str   one for each key

  Beside the leases of a tenant lies when one of them was given back last (freed.lua).

  Returns how many were held.
]]
--- @include "freed"
local released = 0
for position = 1, #KEYS do
  local leases, lease_id = KEYS[position], ARGV[position]
  if redis.call("ZREM", leases, lease_id) == 1 then
    released = released + 1
    note_freed(freed_of(leases))
  end
end
return released
