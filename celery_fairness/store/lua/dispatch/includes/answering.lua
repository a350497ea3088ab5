--[[
  answering: how much one claim takes, and how it tells a task that it has leased.

  A task weighs one, one for each of its limits, and what its message is more than a move.
]]
--- @include "weight"

local TAKEN_AT_MOST = 256

local function weight_of(task, message)
  local _, limits = string.gsub(task.limits, "[^,]+", "")
  return 1 + limits + units_of(message)
end

local function as_told(lease, queue, task, message)
  -- A format would end a name at its first zero byte.
  return lease .. " " .. task.attempt .. " " .. keys_of(task.key, task.limits) .. " " .. task.rank .. " "
    .. #queue .. " " .. queue .. message
end
