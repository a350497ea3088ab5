--[[
  purge: forget waiting tasks of a queue; those that run are not touched. Called until it says 0.

  KEYS[1] prefix str  what every key of the installation begins with

  ARGV[1] queue  str  whose tasks

  Returns how many were forgotten by this call.
]]
--- @include "later"
local prefix, queue = KEYS[1], ARGV[1]

-- Tasks that one call forgets.
local AT_MOST = 100

local gone = 0
local function forget(record)
  redis.call("SREM", prefix .. "known", string.match(record, "^%d+ (%S+)"))
  gone = gone + 1
end

local later = redis.call(
  "ZRANGEBYSCORE", prefix .. "later:" .. queue, "-inf", "+inf", "LIMIT", 0, AT_MOST)
for index = 1, #later do
  redis.call("ZREM", prefix .. "later:" .. queue, later[index])
  forget(string.sub(later[index], ORDER_LENGTH + 1))
end

for _ = gone + 1, AT_MOST do
  local key = redis.call("ZRANGE", prefix .. "ring:" .. queue, 0, 0)[1]
    or redis.call("ZRANGE", prefix .. "full:" .. queue, 0, 0)[1]
  if not key then break end
  forget(pop_first(prefix, queue, key))
  task_left(prefix, queue, key)
end
if gone < AT_MOST then 
  redis.call("DEL", prefix .. "bell:" .. queue, prefix .. "left:" .. queue)
end
return gone
