--[[
  exceeded: how often each key has refused, by its strategy.
]]

-- Of more keys and strategies the others are counted as those of one key.
local EXCEEDED_AT_MOST, OTHER_KEYS = 1000, "_other"

local function count_exceeded(prefix, strategy, key)
  local exceeded, field = prefix .. "exceeded", strategy .. " " .. key
  if redis.call("HINCRBY", exceeded, field, 1) > 1 then return end
  if redis.call("HLEN", exceeded) > EXCEEDED_AT_MOST then
    redis.call("HDEL", exceeded, field)
    redis.call("HINCRBY", exceeded, strategy .. " " .. OTHER_KEYS, 1)
  end
end
