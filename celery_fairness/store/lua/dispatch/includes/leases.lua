--[[
  Leases of claimed tasks: `running` holds the task, `ends` the logical time at which the lease ends,
  `leases:KEY` counts it for its tenant's limit.

  A lease is named TAG.ATTEMPT.NONCE. The nonce is its owner's: where Redis comes back with an older
  memory it gives the same attempt to another, and the first one's end and renewals are not of that.
]]
--- @include "judge"

-- A lease of a key begins. How many it has may be kept (held_of); whether one that stood there already
-- counted is not known.
local function begin_lease(prefix, key, lease, rules)
  local is_new = redis.call("ZADD", prefix .. "leases:" .. key, "+inf", lease) == 1
  local held = rules.held[key]
  rules.held[key] = held and is_new and held + 1 or nil
end

-- Takes the lease out of everything that knows it; the task stays known unless it is done.
local function end_lease(prefix, lease, keys, rules)
  redis.call("HDEL", prefix .. "running", lease)
  if rules.timed then timed().correct(prefix, lease, string.match(keys, "^[^,]+"), keys, rules) end
  if rules.paced then limited().note_end(prefix, lease, keys, rules) end
  redis.call("ZREM", prefix .. "ends", lease)
  for key in string.gmatch(keys, "[^,]+") do
    redis.call("ZREM", prefix .. "leases:" .. key, lease)
  end
end

-- A lease has ended of these keys, told with commas, the tenant's first. Once a call has heard of all that
-- ended it looks at what waits for them (open_freed).
local function freed(keys, rules)
  rules.freed = rules.freed or {}
  rules.freed[#rules.freed + 1] = keys
end

local function open_freed(prefix, rules)
  local ended = rules.freed
  if not ended then return end
  rules.freed = nil
  if rules.limited then return limited().free_all(prefix, ended, rules) end
  for index = 1, #ended do reopen(prefix, string.match(ended[index], "^[^,]+"), rules) end
end

-- What is in `ends` without a task, and is over: with a space before it a key that waits for a lease of the
-- gate, with two a key of which leases were entered again by whoever held them (renew.lua).
local function end_wait(prefix, rules, name)
  redis.call("ZREM", prefix .. "ends", name)
  local key = string.match(name, "^ (.*)$")
  if key and string.sub(key, 1, 1) == " " then
    redis.call("ZREMRANGEBYSCORE", prefix .. "leases:" .. string.sub(key, 2), "-inf", rules.logical)
  elseif key then
    reopen(prefix, key, rules)
  end
end

-- What ends now, at most `most`: leases that nobody renewed, and what waits in `ends` without a task.
-- Returns how many did.
local function expire(prefix, rules, most)
  local ended = redis.call(
    "ZRANGEBYSCORE", prefix .. "ends", "-inf", rules.logical, "LIMIT", 0, most)
  for index = 1, #ended do
    local lease = ended[index]
    local row = redis.call("HGET", prefix .. "running", lease)
    if row then
      rare().expire_one(prefix, rules, lease, row)
    else
      end_wait(prefix, rules, lease)
    end
  end
  open_freed(prefix, rules)
  return #ended
end
