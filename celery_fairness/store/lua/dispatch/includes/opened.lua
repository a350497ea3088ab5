--[[
  opened: which of the limits of a queue that have opened is next, and whose turn it is there.

  Mostly the one that was looked at longest ago. Where the highest rank goes first, of a bounded number
  the one whose next task has the highest; who is next at each its own time says.
]]
--- @include "candidates"

-- Limits of a queue that are open and are compared, where the highest rank goes first.
local LIMITS_AT_MOST = 8

local function first_but(names, met)
  for index = 1, #names do
    if not met[names[index]] then return names[index] end
  end
end

-- Returns who is next of those that wait at a limit that has opened, but those that were `met`; nil where
-- nobody is. Where the task served before says whose turn it is, that is `known` (served).
local function of_limit(prefix, queue, rules, turns, look, known, met)
  for _ = 0, turns.moves + 1 do
    local name, group, first, alone
    if known then
      name, group, first, alone = known.name, known.group, known.first, true
    else
      local names = redis.call(
        "ZRANGEBYSCORE", prefix .. "candidates:" .. queue, 0, "+inf", "LIMIT", 0, 2 + #met)
      name = first_but(names, met)
      if not name then return nil end
      local groups = redis.call("ZRANGE", prefix .. "wait:" .. name .. " " .. queue, 0, 1)
      group, alone = groups[1], not names[2] and not groups[2]
      first = redis.call("ZRANGE", prefix .. "group:" .. group .. " " .. queue, 0, 0, "WITHSCORES")
    end
    known = nil
    local found, goes_on = look_at_group(prefix, queue, name, group, first, rules, turns, look)
    if found then found.alone = alone end
    if not goes_on then return found end
  end
end

-- Returns who of the queue's parked lanes is next where limits have opened; nil where nobody is.
local function of_groups(prefix, queue, rules, turns, look, known)
  local best, met = nil, {}
  for _ = 1, LIMITS_AT_MOST do
    local found = of_limit(prefix, queue, rules, turns, look, known, met)
    if not turns.ranked[queue] then return found end
    if not found then break end
    local rank = string.sub(found.part, 1, 1)
    if not (best and goes_first(best, rank, found.start)) then best = found end
    if found.alone then break end
    met[#met + 1], met[found.name], known = found.name, true, nil
  end
  -- Its tenant may have come into the ring since.
  if #met > 1 then best.start, best.is_out = start_of(prefix, queue, best.key, rules) end
  return best
end
