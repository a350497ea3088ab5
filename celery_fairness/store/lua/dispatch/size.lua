--[[
  size: how many tasks of a queue wait, those for their time included. Writes nothing.

  KEYS[1] prefix str  what every key of the installation begins with

  ARGV[1] queue     str  whose tasks
  ARGV[2] frozen_ms str  "" in production (server TIME); set only by tests

  Returns {waiting, waiting for their time}.
]]
--- @include "ended"
--- @include "now"
local prefix, queue, frozen_ms = KEYS[1], ARGV[1], ARGV[2]

if has_ended(prefix, queue, server_now(frozen_ms)) then return {0, 0} end
local waiting = tonumber(redis.call("HGET", prefix .. "waiting", queue) or 0)
return {waiting, redis.call("ZCARD", prefix .. "later:" .. queue)}
