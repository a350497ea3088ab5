--[[
  stops: keys under which nothing starts for now, whatever their limits say and whatever is enforced.

  `paused` holds those that a person paused, `cooled` those that cool down, with the logical time until
  which they do.
]]

-- How long a pause or a cool-down stops a limit: 0 is not, math.huge until a person says so.
local function stopped_ms(prefix, limit, rules)
  if limit.concurrency == 0 then return math.huge end
  if rules.stops == nil then
    rules.stops = redis.call("EXISTS", prefix .. "paused", prefix .. "cooled") > 0
  end
  if not rules.stops then return 0 end
  if redis.call("SISMEMBER", prefix .. "paused", limit.key) == 1 then return math.huge end
  local cooled = redis.call("ZSCORE", prefix .. "cooled", limit.key)
  return cooled and math.max(0, tonumber(cooled) - rules.logical) or 0
end

-- Forgets cool-downs that are over, at most `most`.
local function forget_cooled(prefix, logical, most)
  local over = redis.call("ZRANGEBYSCORE", prefix .. "cooled", "-inf", logical, "LIMIT", 0, most)
  for index = 1, #over do redis.call("ZREM", prefix .. "cooled", over[index]) end
end
