--[[
  declared: the newest numbers of each key, by which all tasks of the key are judged.

  `declared:KEY` is CONCURRENCY|RATES|THROTTLE, each as the last new task said it that said one; "" where
  none did. A task that says no rate is judged by none, whatever others say. A concurrency of 0 is nobody's
  but its task's: one call would stop all others.

  What was accepted before (a retry, a copy that a gate has sent back) says older numbers, and declares
  them only where none are known.
]]
--- @include "gate_bell"

-- What a key declares is known so long after its last new task.
local DECLARED_MS = 3600000

local function read_declared(text)
  return string.match(text or "||", "^(%d*)|([^|]*)|([^|]*)$")
end

local function newer(own, known, is_new)
  return own ~= "" and (is_new or known == "") and own or known
end

-- A task comes with these limits, at most one of a key. Returns the keys that have other numbers than before.
local function declare(prefix, words, is_new)
  local changed = {}
  for word in string.gmatch(words, "[^,]+") do
    local key, own, own_rates, own_throttle = string.match(word, "^([^|]*)|(%d*)|([^|]*)|([^|]*)|%a[^g]?$")
    if own == "0" then own = "" end
    if key and own .. own_rates .. own_throttle ~= "" then
      local name = prefix .. "declared:" .. key
      local known = redis.call("GETEX", name, "PX", DECLARED_MS)
      local concurrency, rates, throttle = read_declared(known)
      local text = newer(own, concurrency, is_new) .. "|" .. newer(own_rates, rates, is_new)
        .. "|" .. newer(own_throttle, throttle, is_new)
      if text ~= known then redis.call("SET", name, text, "PX", DECLARED_MS) end
      if known and text ~= known then changed[#changed + 1] = key end
    end
  end
  return changed
end

-- What waits at these keys may be open: the next claim, and the next promotion, look at it.
local function look_again(prefix, keys)
  for index = 1, #keys do
    local key = keys[index]
    if redis.call("EXISTS", prefix .. "waited:" .. key) == 1 then redis.call("ZADD", prefix .. "opens", 0, key) end
    if redis.call("EXISTS", prefix .. "gate_places:" .. key) == 1 then
      redis.call("ZADD", prefix .. "gate_looks", 0, key)
      ring_gate(prefix)
    end
  end
end
