--[[
  tick: read the clock and move it on. Every script that takes or keeps a lease calls it first.

  The HDEL removes nothing: a script whose first write is one that Redis refuses at its memory
  limit is refused whole, and a renewal must not be.

  Steps shorter than NOTE_AFTER_MS are not noted: the next call sees the longer one.
]]
--- @include "clock"
--- @include "server"

-- Small against a third of the shortest lease, which is 333 ms.
local NOTE_AFTER_MS = 50

local function tick(clock_key, lease_ms, frozen_ms)
  local logical, now, epoch, said, seen = read_clock(clock_key, lease_ms, frozen_ms)
  redis.call("HDEL", clock_key, "")
  if not seen then
    redis.call("HSET", clock_key, "server", server_id(), "began", string.format("%.0f", now))
  end
  if not seen or math.abs(now - seen) >= NOTE_AFTER_MS then
    redis.call("HSET", clock_key,
      "logical", string.format("%.0f", logical),
      "seen", string.format("%.0f", now),
      "epoch", string.format("%.0f", epoch))
  end
  return logical, now, epoch, said
end
