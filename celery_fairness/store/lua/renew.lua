--[[
  renew: keep leases, named one by one, and say which are missing.

  A lease that had ended but was not yet cleared away is kept: its task still runs. With an empty
  list it only moves the clock, which every worker does at least once in a third of a lease.

  In another epoch than the caller knows, a lease that is missing is entered again: Redis lost its
  memory, or another server has taken it over (server.lua).

  KEYS[1]  clock     hash  logical, seen, epoch (ms); entered
  KEYS[2+] leases    zset  lease id -> logical end (ms); one key for each lease, repeats allowed

  ARGV[1]  lease_ms  int   how long a lease lives without a renewal
  ARGV[2]  epoch     str   the epoch the caller knows, or ""; in another one what is missing is
                           entered again
  ARGV[3]  frozen_ms str   "" in production (server TIME); set only by tests
  ARGV[4+] lease_ids str   one for each key

  Returns {epoch, gone, ...}: the epoch (ms), then the positions (from 1) of leases that
  are gone, or were before they were entered again.
]]
--- @include "tick"
local clock, lease_ms, known_epoch, frozen_ms = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]

-- A set of leases that nobody asks about goes by itself, much later than any outage.
local KEEP_LEASES_MS = 86400000

local logical, now, epoch = tick(clock, lease_ms, frozen_ms)
epoch = meet_server(clock, epoch, now)
local lost = known_epoch ~= "" and tonumber(known_epoch) ~= epoch
local ends = string.format("%.0f", logical + lease_ms)
local answer = {string.format("%.0f", epoch)}
for position = 1, #KEYS - 1 do
  local leases, lease_id = KEYS[position + 1], ARGV[position + 3]
  local counts = redis.call("ZSCORE", leases, lease_id)
  if not counts then answer[#answer + 1] = position end
  if counts or lost then
    redis.call("ZADD", leases, ends, lease_id)
    redis.call("PEXPIRE", leases, KEEP_LEASES_MS)
  end
end
-- What is known of one worker alone is looked for again (dispatch/includes/gate_here.lua).
if lost and #answer > 1 then redis.call("HINCRBY", clock, "entered", 1) end
return answer
