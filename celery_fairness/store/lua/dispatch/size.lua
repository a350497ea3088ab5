--[[
  size: how many tasks of a queue wait, those for their time included. Writes nothing.

  KEYS[1] prefix str  what every key of the installation begins with

  ARGV[1] queue  str  whose tasks

  Returns {waiting, waiting for their time}.
]]
local prefix, queue = KEYS[1], ARGV[1]

local waiting = tonumber(redis.call("HGET", prefix .. "waiting", queue) or 0)
return {waiting, redis.call("ZCARD", prefix .. "later:" .. queue)}
