--[[
  gate_older: what an older version has parked: at a key, whatever the numbers of a task (`gate_wait`), with
  times of their own (`gate_opens`). It is taken to its place when its key is due.
]]
--- @include "gate_parked"

-- Tasks that one call takes to their places.
local OLDER_AT_MOST = 64

local function place_of_key(task, key)
  local places = parked_places(task.key, task.words)
  for index = 1, #places do
    if key_of_place(places[index]) == key then return places[index] end
  end
end

-- Returns whether there was anything.
local function take_older(prefix, logical)
  local key = redis.call("ZRANGEBYSCORE", prefix .. "gate_opens", "-inf", whole(logical), "LIMIT", 0, 1)[1]
  if not key then return false end
  local tags = redis.call(
    "ZRANGEBYSCORE", prefix .. "gate_wait:" .. key, "-inf", "+inf", "LIMIT", 0, OLDER_AT_MOST)
  for index = 1, #tags do
    local record = redis.call("HGET", prefix .. "gate_tasks", tags[index])
    local task = record and read_parked(record)
    redis.call("ZREM", prefix .. "gate_wait:" .. key, tags[index])
    local place = task and place_of_key(task, key)
    -- A worker of that version may have promoted it meanwhile.
    if place and not redis.call("ZSCORE", prefix .. "gate_promoted", tags[index]) then
      wait_at(prefix, task, tags[index], place, 0)
    end
  end
  if #tags == 0 then redis.call("ZREM", prefix .. "gate_opens", key) end
  return true
end
