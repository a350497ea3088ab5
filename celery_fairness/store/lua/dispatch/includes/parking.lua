--[[
  parking: groups of parked lanes, where each waits, and what may be open.

  A group is the parked lanes of one queue with the same shared limits, named by these; or one lane
  that a private limit refused, named "KEY LANE"; lanes that differ by the size of their numbers are one. `groups:QUEUE` says at which limit each waits,
  `group:GROUP QUEUE` holds its tenants by their tags, `wait:LIMIT QUEUE` the groups by their least.

  `candidates:QUEUE` holds every limit at which something of the queue waits: when it was looked at
  last where it may be open, else CLOSED or PAUSED. `waited:KEY` lists "LIMIT QUEUE" in the order in
  which they are looked at next, `opens` says when a key is looked at in any case, `looks` how many of
  those that wait a look has not come to yet: it goes on with the first ones of the list when the key
  with a space before it is due in `opens`.

  `shared` and `tags:KEY` are the virtual time of a key, while somebody waits at it.
]]
--- @include "lanes"
--- @include "limits"

local CLOSED, PAUSED = -1, -2
-- Of a partition the version of its queue's numbers, divided by this, is taken off.
local VERSIONS = 2 ^ 24
-- A thousand million tasks are a part of a thousand of one start.
local AGE = 1 / 2 ^ 40

-- When a tenant is due at a key, if it comes now; `virtual` is the key's time where it is known, `tag` when
-- the tenant was due there last.
local function shared_start(prefix, limit_key, key, virtual, tag)
  tag = tag or tonumber(redis.call("ZSCORE", prefix .. "tags:" .. limit_key, key) or 0)
  return math.max(tag, tonumber(virtual or redis.call("HGET", prefix .. "shared", limit_key) or 0))
end

local function shut(prefix, queue, limit, stopped)
  local closed = (stopped and PAUSED or CLOSED) - (limit.version or 0) / VERSIONS
  redis.call("ZADD", prefix .. "candidates:" .. queue, string.format("%.17g", closed), limit.name)
end

local function register(prefix, queue, group, limit, rules)
  redis.call("HSET", prefix .. "groups:" .. queue, group, limit.name)
  if not redis.call("ZSCORE", prefix .. "candidates:" .. queue, limit.name) then
    redis.call("RPUSH", prefix .. "waited:" .. limit.key, limit.name .. " " .. queue)
    shut(prefix, queue, limit, stopped_ms(prefix, limit, rules) > 0)
  end
  redis.call("HSETNX", prefix .. "shared", limit.key, "0")
end

-- The least tag of a group, which was `before`, may have changed, or it has nobody any more. Returns whose it
-- is, and the tag; nothing in it where it has nobody.
local function order_group(prefix, queue, group, name, before)
  local wait = prefix .. "wait:" .. name .. " " .. queue
  local first = redis.call("ZRANGE", prefix .. "group:" .. group .. " " .. queue, 0, 0, "WITHSCORES")
  if not first[2] then
    redis.call("ZREM", wait, group)
  elseif first[2] ~= before then
    redis.call("ZADD", wait, first[2], group)
  end
  return first
end

local function forget_looks(prefix, key)
  redis.call("HDEL", prefix .. "looks", key)
  redis.call("ZREM", prefix .. "opens", " " .. key)
end

local function unregister(prefix, queue, group, name)
  redis.call("ZREM", prefix .. "wait:" .. name .. " " .. queue, group)
  if redis.call("EXISTS", prefix .. "wait:" .. name .. " " .. queue) == 1 then return end
  local key = string.match(name, "^[^|]*")
  redis.call("LREM", prefix .. "waited:" .. key, 1, name .. " " .. queue)
  redis.call("ZREM", prefix .. "candidates:" .. queue, name)
  if redis.call("EXISTS", prefix .. "waited:" .. key) == 0 then
    redis.call("ZREM", prefix .. "opens", key)
    forget_looks(prefix, key)
    redis.call("HDEL", prefix .. "shared", key)
    redis.call("UNLINK", prefix .. "tags:" .. key)
  end
end

-- Where only time opens a limit, it is looked at then.
local function arm(prefix, limit, rules)
  local wait = wait_ms(prefix, limit, rules)
  if wait > 0 and wait < math.huge then
    redis.call("ZADD", prefix .. "opens", "LT", rules.logical + wait, limit.key)
  end
end

-- Of tenants that are due at one time the one whose first task waits longest goes first: its place among all
-- tasks is this small part of its tag.
local function aged(prefix, queue, group, key, tag)
  local order = redis.call("ZRANGE", prefix .. order_name(key, group, queue), 0, 0, "WITHSCORES")[2]
  return tag + (tonumber(order or 0) % AFTER_ALL) * AGE
end

-- A tenant's lane waits in a group, wherever that waits; where it is new at `limit`.
local function enter_group(prefix, queue, group, key, limit, rules)
  local name = redis.call("HGET", prefix .. "groups:" .. queue, group)
  if not name then register(prefix, queue, group, limit, rules) end
  local members = prefix .. "group:" .. group .. " " .. queue
  if not redis.call("ZSCORE", members, key) then
    local of = name and string.match(name, "^[^|]*") or limit.key
    local tag = aged(prefix, queue, group, key, shared_start(prefix, of, key))
    redis.call("ZADD", members, string.format("%.17g", tag), key)
    order_group(prefix, queue, group, name or limit.name)
  end
  if not name then arm(prefix, limit, rules) end
end

-- A tenant has no lane in a group any more.
local function leave_group(prefix, queue, group, key)
  local members = prefix .. "group:" .. group .. " " .. queue
  local name = redis.call("HGET", prefix .. "groups:" .. queue, group)
  redis.call("ZREM", members, key)
  if redis.call("EXISTS", members) == 1 then
    order_group(prefix, queue, group, name)
  else
    redis.call("HDEL", prefix .. "groups:" .. queue, group)
    unregister(prefix, queue, group, name)
  end
end

local function move_group(prefix, queue, group, limit, rules)
  local name = redis.call("HGET", prefix .. "groups:" .. queue, group)
  unregister(prefix, queue, group, name)
  register(prefix, queue, group, limit, rules)
  order_group(prefix, queue, group, limit.name)
  arm(prefix, limit, rules)
end

local function set_tag(prefix, queue, group, name, key, tag, before)
  redis.call("ZADD", prefix .. "group:" .. group .. " " .. queue, tag, key)
  return order_group(prefix, queue, group, name, before)
end

-- The tenant of what was found in a group was served this task and waits on; `is_last` where somebody has
-- deleted what says so. Where it is the only group of the only limit that may be open, and the tenant is in no
-- ring, in which it would be moved, the claim's next look at the queue knows whose turn it is (turns.known).
local function served(prefix, queue, found, task, turns, is_last)
  local limit_key = found.limit_key
  local tag = task.due_at[limit_key] or shared_start(prefix, limit_key, found.key)
  local first = set_tag(prefix, queue, found.group, found.name, found.key, tag, found.tag)
  if found.alone and found.is_out and not is_last then
    turns.known = {queue = queue, name = found.name, group = found.group, first = first, member = found.member}
  end
end
