--[[
  renew: keep leases, named one by one, and say which are gone.

  A lease that had ended but was not yet cleared away is kept: its task still runs. With an empty
  list it only moves the clock, which every worker does at least once in a third of a lease.

  KEYS[1]  clock     hash  logical, seen, epoch (ms)
  KEYS[2+] leases    zset  lease id -> logical end (ms); one key for each lease, repeats allowed

  ARGV[1]  lease_ms  int   how long a lease lives without a renewal
  ARGV[2]  epoch     str   the epoch the caller knows, or ""; where the memory was lost since, the
                           leases are entered again
  ARGV[3]  frozen_ms str   "" in production (server TIME); set only by tests
  ARGV[4+] lease_ids str   one for each key

  Returns {epoch, gone, ...}: the epoch (ms), then the positions (from 1) of leases that are gone.
]]
--- @include "tick"
local clock, lease_ms, known_epoch, frozen_ms = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]

-- A set of leases that nobody asks about goes by itself, much later than any outage.
local KEEP_LEASES_MS = 86400000

local logical, _, epoch = tick(clock, lease_ms, frozen_ms)
local lost = known_epoch ~= "" and tonumber(known_epoch) ~= epoch
local ends = string.format("%.0f", logical + lease_ms)
local answer = {string.format("%.0f", epoch)}
for position = 1, #KEYS - 1 do
  local leases, lease_id = KEYS[position + 1], ARGV[position + 3]
  if lost or redis.call("ZSCORE", leases, lease_id) then
    redis.call("ZADD", leases, ends, lease_id)
    redis.call("PEXPIRE", leases, KEEP_LEASES_MS)
  else
    answer[#answer + 1] = position
  end
end
return answer
