--[[
  purge: forget waiting tasks of a queue; those that run are not touched. Called until it says 0.

  KEYS[1] prefix str  what every key of the installation begins with

  ARGV[1] queue  str  whose tasks

  Returns how many were forgotten by this call.
]]
--- @include "forget"
--- @later limited "limited"
local prefix, queue = KEYS[1], ARGV[1]
ranked = redis.call("HGET", prefix .. "clock", "ranked")

return forget_waiting(prefix, queue)
