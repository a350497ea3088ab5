--[[
  Obituaries: ends that nobody was there to write a result for.
]]

-- A task ended for good and nobody is there to write its result: the next worker that asks does.
local function leave_obituary(prefix, rules, row)
  redis.call("ZADD", prefix .. "obituaries", rules.logical, row)
end
