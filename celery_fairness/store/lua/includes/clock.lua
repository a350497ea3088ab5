--[[
  read_clock: the server's time, and the logical clock that leases live by.

  The logical clock follows TIME but advances by at most a third of a lease per call, never back:
  an outage or a jump of the server's clock cannot end a lease before its worker could renew it.

  clock_key    hash  logical (ms), seen (ms, TIME of the last call), epoch (ms, when this memory
                     began or another server took it over), server (who wrote it, server.lua), began (ms,
                     when it was empty), loss_reported (a worker knew an older memory that is gone,
                     announce.lua), limited (a task had limits beside
                     its tier's), steered (a key is paused, or people changed its numbers), expiring
                     (a task had an expiry), queued (a queue has a limit), timed (a task was charged
                     by the time it takes), parked (a gate has tasks that wait
                     here: of which broker), paced (a task
                     started under a limit that puts back what it refuses, or at a gate under one
                     with a concurrency), watched (ms, TIME until
                     which somebody watches tasks), ranked (a claim asked for the highest rank of a
                     queue), entered (how often leases were entered again), took (how long tasks
                     of the last kinds held their places, took.lua), unused (a queue has an end)
  lease_ms     int   the caller's lease
  frozen_ms    str   "" in production; a time in ms, set only by tests

  Returns logical, now, epoch (all ms), what is said by those behind it, as fields, and seen (ms; nil
  where there was no clock).
]]
local function read_clock(clock_key, lease_ms, frozen_ms)
  local now
  if frozen_ms ~= "" then
    now = tonumber(frozen_ms)
  else
    local time = redis.call("TIME")
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  local kept = redis.call(
    "HMGET", clock_key, "logical", "seen", "epoch", "limited", "steered", "expiring", "queued", "timed",
    "parked", "paced", "watched", "ranked", "entered", "took", "unused")
  local said = {
    limited = kept[4], steered = kept[5], expiring = kept[6], queued = kept[7], timed = kept[8],
    parked = kept[9], paced = kept[10], watched = kept[11] and tonumber(kept[11]) > now,
    ranked = kept[12], entered = kept[13], took = kept[14], unused = kept[15],
  }
  local logical = tonumber(kept[1])
  if not logical then return now, now, now, said, nil end
  local seen = tonumber(kept[2])
  local step = now - seen
  if step < 0 then step = 0 end
  local longest = math.floor(lease_ms / 3)
  if step > longest then step = longest end
  return logical + step, now, tonumber(kept[3]), said, seen
end
