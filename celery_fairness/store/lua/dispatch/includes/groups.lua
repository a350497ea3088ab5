--[[
  groups: in which lane a task waits, and where a lane does.
]]
--- @include "lanes"
--- @include "shape"

local function lane_of(task)
  return task.limits == "" and task.rank or task.rank .. "," .. task.limits
end

-- The limits of a lane that are shared, which name the group that it waits in, whatever their numbers.
local function shared_of(lane)
  local words, shared = string.sub(shape_of(lane), 3), {}
  for word in string.gmatch(words, "[^,]+") do
    if string.sub(word, -1) ~= "p" then shared[#shared + 1] = word end
  end
  return table.concat(shared, ",")
end

-- In which group a lane waits; nil where it is ready. Without a limit nothing is parked.
local function group_of(prefix, queue, key, lane)
  if #lane == 1 then return nil end
  local alone = redis.call("ZSCORE", prefix .. "parked:" .. key .. " " .. queue, lane)
  if not alone then return nil end
  return alone == "1" and key .. " " .. shape_of(lane) or shared_of(lane)
end
