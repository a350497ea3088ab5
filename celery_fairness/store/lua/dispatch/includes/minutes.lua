--[[
  minutes: what the claims of one minute started and found at its tier's limit, by tier and queue.

  `minute:MINUTE` has counts by "WHAT TIER QUEUE". WHAT is "refused", or of a start how long the task
  had waited: "quiet:BITS" of a task behind none of its tenant's, "noisy:BITS" of another, which is
  less than two to the power of BITS ms; "started" where it has started before, or nobody knows.

  A call counts for itself and writes at its end, with as many commands however many it has met, and
  nothing where it met nothing.
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

local function note_start(rules, task, tier, queue)
  local put, noisy = string.match(task.put, "^@(%d+)(%+?)$")
  local what = "started"
  if put and task.attempt == 1 then
    local _, bits = math.frexp(math.max(0, rules.now - tonumber(put)))
    what = (noisy == "" and "quiet:" or "noisy:") .. bits
  end
  note_minute(rules, what, tier, queue)
end

local function write_minute(prefix, rules)
  local met = rules.met
  if not met then return end
  local minute = prefix .. "minute:" .. string.format("%.0f", math.floor(rules.now / MINUTE_MS))
  local known, sums, fields = redis.call("HMGET", minute, unpack(met.order)), {}, nil
  for index = 1, #met.order do
    local field = met.order[index]
    local count = met.count[field]
    if not known[index] then fields = (fields or redis.call("HLEN", minute)) + 1 end
    if known[index] or fields <= MINUTE_FIELDS_AT_MOST then
      sums[#sums + 1] = field
      sums[#sums + 1] = (known[index] or 0) + count
    else
      redis.call("HINCRBY", minute, met.others[field], count)
    end
  end
  if #sums > 0 then redis.call("HSET", minute, unpack(sums)) end
  if fields then redis.call("PEXPIRE", minute, KEPT_MS) end
end
