--[[
  minutes: what the claims of one minute started and found at its tier's limit, by tier and queue.

  `minute:MINUTE` has counts by "WHAT TIER QUEUE". A call counts for itself and writes at its end, one
  command for each that it has met, and nothing where it met nothing.
]]

-- So long the numbers of a minute are kept, by the server's time.
local MINUTE_MS, KEPT_MS = 60000, 21660000
-- Of more fields of a minute the others are counted as those of one queue.
local MINUTE_FIELDS_AT_MOST, OTHER_QUEUES = 1000, "_other"

local function note_minute(rules, what, tier, queue)
  local met = rules.met or {order = {}, count = {}, others = {}}
  local first = what .. " " .. (tier or "") .. " "
  local field = first .. queue
  if not met.count[field] then
    met.order[#met.order + 1] = field
    met.others[field] = first .. OTHER_QUEUES
  end
  met.count[field] = (met.count[field] or 0) + 1
  rules.met = met
end

local function write_minute(prefix, rules)
  local met = rules.met
  if not met then return end
  local minute = prefix .. "minute:" .. string.format("%.0f", math.floor(rules.now / MINUTE_MS))
  for index = 1, #met.order do
    local field = met.order[index]
    local count = met.count[field]
    if redis.call("HINCRBY", minute, field, count) == count then
      redis.call("PEXPIRE", minute, KEPT_MS)
      if redis.call("HLEN", minute) > MINUTE_FIELDS_AT_MOST then
        redis.call("HDEL", minute, field)
        redis.call("HINCRBY", minute, met.others[field], count)
      end
    end
  end
end
