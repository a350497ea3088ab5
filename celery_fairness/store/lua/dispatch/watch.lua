--[[
  watch: for some time puts, starts and ends of tasks are told one by one (watched.lua).

  Who watches for a shorter time takes nothing from who does for longer. What was told is kept for an
  hour after that.

  KEYS[1]  prefix     str  what every key of the installation begins with

  ARGV[1]  wait_ms    int  for how long from now
  ARGV[2]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns the server's time (ms) until which they are told.
]]
--- @include "now"
--- @include "watched"
local prefix, wait_ms, frozen_ms = KEYS[1], tonumber(ARGV[1]), ARGV[2]

local KEPT_MS = 3600000

local now = server_now(frozen_ms)
local known = tonumber(redis.call("HGET", prefix .. "clock", "watched") or 0)
local ends_ms = math.max(known, now + wait_ms)
redis.call("HSET", prefix .. "clock", "watched", string.format("%.0f", ends_ms))
if known <= now then append_watched(prefix, "task.watched", "until", string.format("%.0f", ends_ms)) end
redis.call("PEXPIRE", prefix .. "task_events", ends_ms - now + KEPT_MS)
return ends_ms
