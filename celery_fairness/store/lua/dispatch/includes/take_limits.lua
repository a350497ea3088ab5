--[[
  take_limits: a task starts, and its limits count it: its lease, its start, and at shared limits at
  which somebody waits the virtual time at which its tenant is due there next.
]]
--- @include "leases"
--- @include "parking"

-- Tags that a start clears away whose time is over.
local CLEAR_TAGS_AT_MOST = 4
-- Tags of one key: it goes on to the least one where there are more.
local TAGS_AT_MOST = 1000

-- A tenant started something under a key, whose time is `virtual`, where it was due at `tag`, if that is known.
-- Returns when it is due there next. `rules.passed` says by key of which time a claim knows that no tag is over.
local function charge_shared(prefix, limit_key, key, virtual, amount, tag, rules)
  local tags = prefix .. "tags:" .. limit_key
  local start = shared_start(prefix, limit_key, key, virtual, tag)
  if start ~= tonumber(virtual) then
    redis.call("HSET", prefix .. "shared", limit_key, string.format("%.17g", start))
  end
  local is_new = redis.call("ZADD", tags, start + amount, key) == 1
  local passed = rules.passed[limit_key] == start and {}
    or redis.call("ZRANGEBYSCORE", tags, "-inf", start, "LIMIT", 0, CLEAR_TAGS_AT_MOST)
  -- The least charge is lost in a large sum.
  rules.passed[limit_key] = #passed == 0 and start + amount > start and start or nil
  if #passed > 0 then
    redis.call("ZREM", tags, unpack(passed))
  elseif is_new and redis.call("ZCARD", tags) > TAGS_AT_MOST then
    redis.call("HSET", prefix .. "shared", limit_key, redis.call("ZPOPMIN", tags)[2])
  end
  return start + amount
end

-- A task starts: its limits count it, and it is noted when its tenant is due at them next.
local function take_limits(prefix, task, lease, rules, amount, found)
  local limits = of_one_key(limits_now(prefix, task.limits, rules))
  local keys, windows, counts = {}, {}, false
  for index = 1, #limits do
    local limit = limits[index]
    keys[index], windows[index] = limit.key, prefix .. "window:" .. limit.key
    counts = counts or limit.rates ~= "" or limit.throttle ~= ""
  end
  local virtual = redis.call("HMGET", prefix .. "shared", unpack(keys))
  counts = counts or redis.call("EXISTS", unpack(windows)) > 0
  task.due_at = {}
  for index = 1, #limits do
    local limit = limits[index]
    begin_lease(prefix, limit.key, lease, rules)
    if counts then count_start(prefix, limit, rules.logical) end
    note_begin(prefix, limit, lease, rules)
    if virtual[index] and not limit.private then
      local tag = limit.key == found.limit_key and found.due
      task.due_at[limit.key] = charge_shared(prefix, limit.key, task.key, virtual[index], amount, tag, rules)
    end
  end
end
