--[[
  put_off: say that a promoted task could not be published. It is promoted again after a pause, which
  doubles with each try up to one lease. Until then it reserves no start: others may take its slots.

  KEYS[1]  prefix    str  what every key of the installation begins with

  ARGV[1]  lease_ms  int  how long a lease lives without a renewal
  ARGV[2]  tag       str  what all copies of the message have in common

  Returns how often it could not be published, 0 where it is not promoted any more.
]]
--- @include "starts"
--- @include "gate_parked"
local prefix, lease_ms, tag = KEYS[1], tonumber(ARGV[1]), ARGV[2]

-- The first pause is this part of a lease.
local FIRST_PAUSE = 1 / 16

local tries = 0
local record = redis.call("HGET", prefix .. "gate_tasks", tag)
local ends_at = record and redis.call("ZSCORE", prefix .. "gate_promoted", tag)
if ends_at then
  local task = read_parked(record)
  leave_gate(prefix, task.key, tag, parked_places(task.key, task.words))
  tries = redis.call("HINCRBY", prefix .. "copy:" .. tag, "tries", 1)
  local pause_ms = math.min(lease_ms, lease_ms * FIRST_PAUSE * 2 ^ (tries - 1))
  -- It was to be promoted again a lease after its promotion.
  redis.call("ZADD", prefix .. "gate_promoted", whole(tonumber(ends_at) - lease_ms + pause_ms), tag)
end
return tries
