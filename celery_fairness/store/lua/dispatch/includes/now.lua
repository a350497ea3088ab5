--[[
  server_now: the server's time.

  frozen_ms    str   "" in production; a time in ms, set only by tests

  Returns ms.
]]
local function server_now(frozen_ms)
  if frozen_ms ~= "" then return tonumber(frozen_ms) end
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
