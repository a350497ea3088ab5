--[[
  release: end leases, named one by one. Twice is harmless, and so is a lease that is gone.

  KEYS[1+] leases     zset  lease id -> logical end (ms); one key for each lease, repeats allowed

  ARGV[1+] lease_ids  str   one for each key

  Returns how many were held.
]]
local released = 0
for position = 1, #KEYS do
  local leases, lease_id = KEYS[position], ARGV[position]
  released = released + redis.call("ZREM", leases, lease_id)
end
return released
