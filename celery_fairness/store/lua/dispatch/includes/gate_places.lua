--[[
  gate_places: where parked tasks wait.

  A place is a limit without the size of its numbers, as a limit's name says, or a tenant's tier, which the
  key alone names. `gate_places:KEY` has the places of a key, each with the logical time of the last look at it where
  there are more than one call looks at, `gate_looks` when a key is looked at, and `gate_waiting` how many
  tasks wait at it. One that must not start yet keeps back those of its place, and nobody else: whoever says
  another kind of number, or 0, waits at another.
]]
--- @include "gate_turns"
--- @include "shape"

-- All places at which a task may wait.
local function parked_places(key, words)
  local places = {key ~= "" and key or nil}
  for word in string.gmatch(words, "[^,]+") do
    places[#places + 1] = name_of(word)
  end
  return places
end

-- Looks at a key at a logical time, or before.
local function look_at_gate(prefix, key, at)
  local known = redis.call("ZSCORE", prefix .. "gate_looks", key)
  if known and tonumber(known) <= at then return end
  redis.call("ZADD", prefix .. "gate_looks", whole(at), key)
end

-- Lets a task wait at a place that is looked at then.
local function wait_at(prefix, task, tag, place, at)
  local tenant, key = tenant_of(task.key), key_of_place(place)
  local _, first = first_of(prefix, tenant, place)
  if not first then redis.call("ZADD", prefix .. "gate_places:" .. key, "NX", 0, place) end
  if not first or tonumber(task.seq) < tonumber(first) then
    redis.call("HSETNX", prefix .. "gate_virtual", key, 0)
    local start = first and take_turn(prefix, tenant, first, place)
      or next_start(prefix, key, tenant, redis.call("HGET", prefix .. "gate_virtual", key))
    redis.call("ZADD", prefix .. "gate_turns:" .. place, start, turn_name(tenant, task.seq))
  end
  local waits = redis.call("ZADD", prefix .. "gate_at:" .. tenant .. " " .. place, task.seq, tag)
  redis.call("HINCRBY", prefix .. "gate_waiting", key, waits)
  look_at_gate(prefix, key, at)
end

-- Forgets a place at which nobody waits any more.
local function forget_empty(prefix, place)
  local key = key_of_place(place)
  if redis.call("EXISTS", prefix .. "gate_turns:" .. place) == 1 then return end
  redis.call("ZREM", prefix .. "gate_places:" .. key, place)
  if redis.call("EXISTS", prefix .. "gate_places:" .. key) == 1 then return end
  redis.call("HDEL", prefix .. "gate_waiting", key)
  redis.call("HDEL", prefix .. "gate_virtual", key)
  redis.call("UNLINK", prefix .. "gate_finish:" .. key)
end

local function leave_place(prefix, tenant, tag, place)
  local head, seq = first_of(prefix, tenant, place)
  if redis.call("ZREM", prefix .. "gate_at:" .. tenant .. " " .. place, tag) == 0 then return end
  redis.call("HINCRBY", prefix .. "gate_waiting", key_of_place(place), -1)
  if head ~= tag then return end
  local start = take_turn(prefix, tenant, seq, place)
  local _, first = first_of(prefix, tenant, place)
  if first then
    redis.call("ZADD", prefix .. "gate_turns:" .. place, start or 0, turn_name(tenant, first))
  else
    forget_empty(prefix, place)
  end
end

-- The places of a key that nobody has looked at since it was due, and whether there are more of them.
local function heads_of(prefix, key, since, logical)
  local name, heads = prefix .. "gate_places:" .. key, {}
  local places = redis.call(
    "ZRANGEBYSCORE", name, "-inf", "+inf", "WITHSCORES", "LIMIT", 0, PLACES_AT_MOST + 1)
  local next_look = tonumber(places[2 * PLACES_AT_MOST + 2])
  for index = 1, PLACES_AT_MOST do
    local place = places[2 * index - 1]
    heads[index] = place and {place = place}
    if next_look then redis.call("ZADD", name, whole(logical), place) end
  end
  return heads, next_look and next_look <= since
end

-- The first task of the tenant whose turn it is, of all places that are not found to be closed; nil where
-- there is none. Every start may have moved the others.
local function first_head(prefix, heads)
  local first
  for index = 1, #heads do
    local head = heads[index]
    local turn = not head.closed and redis.call("ZRANGE", prefix .. "gate_turns:" .. head.place, 0, 0, "WITHSCORES")
    if turn and turn[1] then
      local seq, tenant = string.match(turn[1], "^(%d+) (.*)$")
      head.turn, head.start, head.seq, head.tenant = turn[1], tonumber(turn[2]), tonumber(seq), tenant
      if not first or head.start < first.start or head.start == first.start and head.seq < first.seq then
        first = head
      end
    end
  end
  if not first then return nil end
  first.tag = first_of(prefix, first.tenant, first.place)
  -- Somebody has deleted its tasks.
  if not first.tag then
    redis.call("ZREM", prefix .. "gate_turns:" .. first.place, first.turn)
    forget_empty(prefix, first.place)
  end
  return first
end
