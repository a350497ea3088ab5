--[[
  tick: read the clock and move it on. Every script that takes or keeps a lease calls it first.

  The HDEL removes nothing: a script whose first write is one that Redis refuses at its memory
  limit is refused whole, and a renewal must not be.
]]
--- @include "clock"
local function tick(clock_key, lease_ms, frozen_ms)
  local logical, now, epoch = read_clock(clock_key, lease_ms, frozen_ms)
  redis.call("HDEL", clock_key, "")
  redis.call("HSET", clock_key,
    "logical", string.format("%.0f", logical),
    "seen", string.format("%.0f", now),
    "epoch", string.format("%.0f", epoch))
  return logical, now, epoch
end
