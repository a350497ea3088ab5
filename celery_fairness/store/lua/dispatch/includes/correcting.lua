--[[
  correcting: a task that was charged an estimate has ended: its tenant's finish is put right by the
  time for which it held its place.

  `charged` says of a lease: the estimate in seconds, the tenant's weight, the logical time of the
  claim, the tenant's finish with this charge, and the queue of its ring.
]]
--- @include "charging"

-- The part that the last run has in a tenant's mean is one of so many.
local MEAN_PARTS = 8

-- The mean is a tenant's with something waiting.
local function note_mean(prefix, key, seconds)
  local account = prefix .. "account:" .. key
  local known = redis.call("HMGET", account, "tenant", "mean")
  if not known[1] then return end
  local mean = tonumber(known[2])
  mean = mean and mean + (seconds - mean) / MEAN_PARTS or seconds
  redis.call("HSET", account, "mean", string.format("%.17g", mean))
end

-- Adds to a tenant's number in a table. Returns whether it has one there.
local function add_there(prefix, place, key, missing)
  local at = redis.call("ZSCORE", prefix .. place, key)
  if at then redis.call("ZADD", prefix .. place, tonumber(at) + missing, key) end
  return at
end

-- A tenant was charged too little, `missing`, when its finish in a queue became `finish`.
local function correct_finish(prefix, queue, key, finish, missing)
  if redis.call("HEXISTS", prefix .. "waiting", queue) == 0 then return end
  if add_there(prefix, "ring:" .. queue, key, missing)
    or add_there(prefix, "full:" .. queue, key, missing)
    or add_there(prefix, "out:" .. queue, key, missing) then
    if ranked then ranks().rank_again(prefix, queue, key) end
    return
  end
  -- Its debt is forgotten: it is not more than what was missing.
  local virtual = tonumber(redis.call("HGET", prefix .. "virtual", queue) or 0)
  finish = math.min(finish, virtual) + missing
  if finish > virtual then redis.call("ZADD", prefix .. "out:" .. queue, finish, key) end
end

local function correct(prefix, lease, key, keys, rules)
  local charged = redis.call("HGET", prefix .. "charged", lease)
  if not charged then return end
  redis.call("HDEL", prefix .. "charged", lease)
  local estimate, weight, since, finish, queue = string.match(charged, "^(%S+) (%S+) (%S+) (%S+) (.*)$")
  local seconds = math.max(0, (rules.logical - tonumber(since)) / 1000)
  local missing = charge_of(seconds, tonumber(weight)) - charge_of(tonumber(estimate), tonumber(weight))
  note_mean(prefix, key, seconds)
  correct_finish(prefix, queue, key, tonumber(finish), missing)
  if not rules.limited then return end
  for each in string.gmatch(keys, "[^,]+") do
    add_there(prefix, "tags:" .. each, key, missing)
  end
end
