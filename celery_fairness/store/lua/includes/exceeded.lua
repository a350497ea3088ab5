--[[
  exceeded: how often each key has refused, by its strategy.

  exceeded_key  hash  "STRATEGY KEY" -> how often
]]

-- Of more keys and strategies the others are counted as those of one key; tenants leave room for others.
local EXCEEDED_AT_MOST, OTHER_KEYS = 1000, "_other"

local function count_exceeded(exceeded_key, strategy, key)
  local field = strategy .. " " .. key
  if redis.call("HINCRBY", exceeded_key, field, 1) > 1 then return end
  local most = string.sub(key, 1, 7) == "tenant:" and EXCEEDED_AT_MOST or 2 * EXCEEDED_AT_MOST
  if redis.call("HLEN", exceeded_key) > most then
    redis.call("HDEL", exceeded_key, field)
    redis.call("HINCRBY", exceeded_key, strategy .. " " .. OTHER_KEYS, 1)
  end
end
