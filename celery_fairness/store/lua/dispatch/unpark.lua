--[[
  unpark: say of parked tasks that the broker has them again, that they have failed because no broker
  takes them, or that people cancelled them. Of one that is not parked nothing is said.

  Of a failed one no copy starts any more. A cancelled one is given to a worker as if it had expired. One
  that was promoted before is too late.

  KEYS[1]  prefix    str  what every key of the installation begins with

  ARGV[1]  how       str  "published", "failed" or "cancelled"
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
  local promoted = record and redis.call("ZSCORE", prefix .. "gate_promoted", tag)
  -- One that came to a gate before this, and was parked again, is not on the broker: its copies are
  -- those of park_message.
  local copies = redis.call("HMGET", prefix .. "copy:" .. tag, "current", "next")
  if how == "published" and record and (promoted or copies[1] ~= copies[2]) then
    local task = read_parked(record)
    redis.call("HDEL", prefix .. "gate_tasks", tag)
    redis.call("ZREM", prefix .. "gate_expires", tag)
    redis.call("HDEL", prefix .. "copy:" .. tag, "tries")
    local places = parked_places(task.key, task.words)
    -- It waits again where this comes late; what was promised lasts until it comes to a gate.
    for position = 1, #places do leave_place(prefix, tenant_of(task.key), tag, places[position]) end
    parked = parked + 1
  elseif promoted and how == "failed" then
    tell_parked_end(prefix, tag, record, "fairness.unpublished")
    local task = read_parked(record)
    redis.call("HDEL", prefix .. "copy:" .. tag, "tries", "admitted")
    -- No copy has this serial.
    redis.call("HSET", prefix .. "copy:" .. tag, "current", "-", "next", "-")
    forget_parked(prefix, task.key, tag, parked_places(task.key, task.words))
    parked = parked + 1
  elseif record and not promoted and how == "cancelled" then
    tell_parked_end(prefix, tag, record, "fairness.cancelled")
    redis.call("ZADD", prefix .. "gate_expires", 0, tag)
    ring_gate(prefix)
    parked = parked + 1
  end
end
return parked
