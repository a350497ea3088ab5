--[[
  queues: the limits of queues, of each as a whole or of each partition of it.

  `queue_limits` says by queue KEY SHAPE VERSION DECLARED SET, where SHAPE is whole or parts, and the
  last two are "" or CONCURRENCY|RATES|THROTTLE|ACTION|LOCAL: what people set stands in the place of what
  is declared. The version grows with what is said of any queue. `queue_keys` says by KEY whose it is.
  KEY is queue:QUEUE, that of a partition queue:QUEUE:PARTITION, where QUEUE has no colon.
]]

local function read_queue(text)
  local key, shape, version, declared, set = string.match(text, "^(%S+) (%a+) (%d+) (%S*) (%S*)$")
  local row = {key = key, parts = shape == "parts", version = tonumber(version), rates = "",
    declared = declared, set = set, throttle = "", on_limit = "w", word = key .. "||||wg"}
  local numbers = set ~= "" and set or declared
  if numbers == "" then return row end
  local concurrency, rates, throttle, action, of_process = string.match(
    numbers, "^(%d*)|([^|]*)|([^|]*)|(%a)|(%d*)$")
  row.concurrency, row.rates, row.throttle = tonumber(concurrency), rates, throttle
  row.on_limit, row.of_process = action, tonumber(of_process)
  -- That of the queue as a whole, as its tasks have it while they run.
  if not row.parts then
    row.word = table.concat({key, concurrency, rates, throttle, action .. "g"}, "|")
  end
  return row
end

-- What is known of a queue; false where it has no limit.
local function queue_row(prefix, queue, rules)
  rules.rows = rules.rows or {}
  if rules.rows[queue] == nil then
    local text = redis.call("HGET", prefix .. "queue_limits", queue)
    rules.rows[queue] = text and read_queue(text)
  end
  return rules.rows[queue]
end

-- A limit whose numbers are those of its queue gets them.
local function use_numbers(prefix, limit, rules)
  local whole = string.match(limit.key, "^queue:[^:]+")
  local queue = whole and redis.call("HGET", prefix .. "queue_keys", whole)
  local row = queue and queue_row(prefix, queue, rules)
  if not row then
    limit.on_limit = "w"
    return
  end
  limit.concurrency, limit.rates, limit.throttle = row.concurrency, row.rates, row.throttle
  limit.on_limit, limit.version = row.on_limit, row.version
  limit.of_process, limit.of_parts = row.of_process, row.parts
end
