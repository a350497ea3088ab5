--[[
  requeue: a dead letter waits again, last in its lane; its deaths are counted from 0.

  KEYS[1]  prefix    str  what every key of the installation begins with

  ARGV[1]  queue     str  of whose dead letters it is one
  ARGV[2]  record    str  as it lies there
  ARGV[3]  obituary  str  its own, where its result is not written yet, or ""

  Returns how many wait again: none where it lies there no more.
]]
--- @include "events"
--- @include "waiting"
local prefix, queue, record, obituary = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
ranked = redis.call("HGET", prefix .. "clock", "ranked")

-- It is the first write: Redis refuses none that comes after it, also where its memory is full.
local moved = redis.call("LREM", prefix .. "dead:" .. queue, 1, record)
if moved > 0 then
  if obituary ~= "" then redis.call("ZREM", prefix .. "obituaries", obituary) end
  redis.call("HINCRBY", prefix .. "counts", "requeued", moved)
  local task, message = read_record(record)
  task.seq, task.deaths = redis.call("INCR", prefix .. "sequence"), 0
  enqueue(prefix, queue, task, message, false)
  write_event_of(prefix, "fairness.requeued", queue, task, message)
end
return moved
