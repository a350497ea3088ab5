--[[
  unpark: say of parked tasks that the broker has them again, or that people cancelled them. Of one that
  is not parked nothing is said.

  A cancelled one is given to a worker as if it had expired. One that was promoted before is too late.

  KEYS[1]  prefix    str  what every key of the installation begins with

  ARGV[1]  how       str  "published" or "cancelled"
  ARGV[2+] tags      str  what all copies of a message have in common

  Returns how many were parked.
]]
--- @include "starts"
--- @include "gate_ends"
local prefix, how = KEYS[1], ARGV[1]

local parked = 0
for index = 2, #ARGV do
  local tag = ARGV[index]
  local record = redis.call("HGET", prefix .. "gate_tasks", tag)
  if record and how == "published" then
    local task = read_parked(record)
    redis.call("HDEL", prefix .. "gate_tasks", tag)
    redis.call("ZREM", prefix .. "gate_expires", tag)
    local keys = parked_keys(task.key, task.words)
    -- It waits again where this comes late; what was promised lasts until it comes to a gate.
    for position = 1, #keys do redis.call("ZREM", prefix .. "gate_wait:" .. keys[position], tag) end
    parked = parked + 1
  elseif record and not redis.call("ZSCORE", prefix .. "gate_promoted", tag) then
    tell_parked_end(prefix, tag, record, "fairness.cancelled")
    redis.call("ZADD", prefix .. "gate_expires", 0, tag)
    ring_gate(prefix)
    parked = parked + 1
  end
end
return parked
