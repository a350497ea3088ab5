--[[
  stopped: how long a limit is stopped, whatever it counts and whatever is enforced.
]]
--- @include "stops"

-- Whether anything is stopped or has other numbers than its own.
local function is_steered(prefix, rules)
  if rules.stops == nil then
    rules.stops = redis.call("EXISTS", prefix .. "paused", prefix .. "paused_until",
      prefix .. "cooled", prefix .. "overrides") > 0
  end
  return rules.stops
end

-- How long a pause or a cool-down stops a limit: 0 is not, math.huge until a person says so.
local function stopped_ms(prefix, limit, rules)
  if limit.concurrency == 0 then return math.huge end
  if not is_steered(prefix, rules) then return 0 end
  local cooled = redis.call("ZSCORE", prefix .. "cooled", limit.key)
  return math.max(paused_ms(prefix, limit.key, rules),
    cooled and tonumber(cooled) - rules.logical or 0)
end

-- Whether a limit that is stopped is so because of a person, and does not cool down alone.
local function is_paused(prefix, limit, rules)
  return limit.concurrency == 0 or paused_ms(prefix, limit.key, rules) > 0
end

-- Forgets cool-downs that are over, at most `most`.
local function forget_cooled(prefix, logical, most)
  local over = redis.call("ZRANGEBYSCORE", prefix .. "cooled", "-inf", logical, "LIMIT", 0, most)
  for index = 1, #over do redis.call("ZREM", prefix .. "cooled", over[index]) end
end
