--[[
  saturation: for how long limits have let no task start.

  Workers announce the limits that their app declares. An announcement that finds such a limit closed adds the time
  since the last look at its key. So the total is as exact as announcements are frequent, and claims do nothing for it.

  `saturated` holds `TOTAL_MS SEEN_MS` by key. SEEN_MS is the server time of the last look.
]]

-- One call looks at most at this many limits. One limit takes about ten microseconds.
local LIMITS_AT_MOST = 100
-- If `saturated` has this many keys, a new key gets no total.
local KEYS_AT_MOST = 1000
-- Many workers declare the same keys. A key that was looked at within this time is left out.
local LOOK_AGAIN_MS = 1000

local function numbers_of(text)
  local total, seen = string.match(text or "0", "^(%d+) ?(%d*)$")
  return tonumber(total), tonumber(seen)
end

-- Adds the time since the last look to the keys that are closed now.
-- specs: limits as a task has them (limits.lua)
-- longest_ms: the longest time that one look adds, because nobody has seen the key if more has passed
function Saturation.add_time(ctx, rules, specs, longest_ms)
  local keys, changed = {}, {}
  for index = 1, math.min(#specs, LIMITS_AT_MOST) do keys[index] = string.match(specs[index], "^[^|]*") end
  if #keys == 0 then return end
  local name = ctx.prefix .. Keys.SATURATED
  local known, room = redis.call("HMGET", name, unpack(keys)), KEYS_AT_MOST - redis.call("HLEN", name)
  for index = 1, #keys do
    local total, seen = numbers_of(known[index])
    local passed = seen and rules.now - seen
    if not seen then
      room = room - 1
    elseif passed >= LOOK_AGAIN_MS then
      local _, _, why = Limits.wait_ms(ctx, Limits.limit_now(ctx, specs[index], rules), rules)
      if why then total = total + math.min(passed, longest_ms) end
    end
    -- The server's clock may have gone back.
    if not seen and room >= 0 or seen and math.abs(passed) >= LOOK_AGAIN_MS then
      changed[#changed + 1], changed[#changed + 2] = keys[index], string.format("%.0f %.0f", total, rules.now)
    end
  end
  if next(changed) then redis.call("HSET", name, unpack(changed)) end
end

-- Returns the total of a key in ms. It is 0 for a key that no worker declares.
function Saturation.total_ms(ctx, key)
  return (numbers_of(redis.call("HGET", ctx.prefix .. Keys.SATURATED, key)))
end
