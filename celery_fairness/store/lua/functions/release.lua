--[[
  release: end leases, named one by one. A second call is harmless, and so is a lease that is gone.

  keys[1]  prefix     str  what every key of the installation begins with

  args[1+] leases     str  pairs: lease, the key that it counts in

  The key beside the leases of a tenant holds when one of them was last given back (leases.lua).

  Returns how many were held.
]]
register("release", {"allow-oom"}, function(keys, args)
  local released = 0
  for index = 1, #args, 2 do
    local leases = keys[1] .. "leases:" .. args[index + 1]
    if redis.call("ZREM", leases, args[index]) == 1 then
      released = released + 1
      Leases.note_freed(Leases.freed_of(leases))
    end
  end
  return released
end)
