--[[
  announce: a worker process reports that it lives and whether it enforces limits. The answer reports
  whether Redis lost its memory since the epoch that the worker knew.

  The first caller that knew an older memory adds the event and the count: once per memory, whatever
  the number of workers.

  KEYS[1]  prefix     str  what every key of the installation begins with

  ARGV[1]  lease_ms   int  how long a lease lives without a renewal
  ARGV[2]  worker     str  the worker as JSON (looking/workers.py); "" if the caller is no worker
  ARGV[3]  lives_ms   int  how long the worker is listed without another announcement; 0 ends it
  ARGV[4]  epoch      str  the epoch the caller knew, or ""
  ARGV[5]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns "lost" if this memory began after the epoch that the caller knew, otherwise "kept".
]]
--- @include "tick"
--- @include "events"
local prefix, lease_ms, worker = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local lives_ms, known_epoch, frozen_ms = tonumber(ARGV[3]), ARGV[4], ARGV[5]

-- Workers that ended without a word and that one call takes from the list.
local FORGET_AT_MOST = 64

local _, now = tick(prefix .. "clock", lease_ms, frozen_ms)
if worker ~= "" then
  local ended = redis.call(
    "ZRANGEBYSCORE", prefix .. "workers", "-inf", now, "LIMIT", 0, FORGET_AT_MOST)
  ended[#ended + 1] = worker
  redis.call("ZREM", prefix .. "workers", unpack(ended))
  if lives_ms > 0 then
    redis.call("ZADD", prefix .. "workers", string.format("%.0f", now + lives_ms), worker)
    redis.call("PEXPIRE", prefix .. "workers", lives_ms)
  end
end
local began = tonumber(redis.call("HGET", prefix .. "clock", "began") or 0)
local lost = known_epoch ~= "" and began > tonumber(known_epoch)
if lost and redis.call("HSETNX", prefix .. "clock", "loss_reported", 1) == 1 then
  write_event(prefix, "fairness.memory_lost", "since", known_epoch)
  redis.call("HINCRBY", prefix .. "counts", "memory_lost", 1)
end
return lost and "lost" or "kept"
