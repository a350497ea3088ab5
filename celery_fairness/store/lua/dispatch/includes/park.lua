--[[
  park: lanes leave the claims' sight while a limit is closed, and come back.
]]
--- @include "groups"
--- @include "parking"
--- @include "weight"

-- More kinds than any program has: a part that stayed behind would be met by every claim.
local KINDS_AT_MOST = 1000000

-- The parts that a lane may have.
local function parts_of(prefix, queue, key, lane)
  local kinds = redis.call("SRANDMEMBER",
    prefix .. "kinds:" .. key .. " " .. lane .. " " .. queue, KINDS_AT_MOST)
  local parts = {lane}
  for index = 1, #kinds do parts[index + 1] = lane .. "b " .. kinds[index] end
  return parts
end

-- Parts that one command names: a script may give it so many words.
local PARTS_AT_ONCE = 1000

-- Moves parts from one order to another.
local function move_parts(prefix, parts, from, to)
  for first = 1, #parts, PARTS_AT_ONCE do
    local some = {unpack(parts, first, math.min(#parts, first + PARTS_AT_ONCE - 1))}
    local orders, there = redis.call("ZMSCORE", prefix .. from, unpack(some)), {}
    for index = 1, #some do
      if orders[index] then
        there[#there + 1] = orders[index]
        there[#there + 1] = some[index]
      end
    end
    redis.call("ZREM", prefix .. from, unpack(some))
    if #there > 0 then redis.call("ZADD", prefix .. to, unpack(there)) end
  end
end

-- A limit refused a lane: it waits there, alone where the limit is the tenant's own.
local function park(prefix, queue, key, lane, limit, rules, turns)
  local before = group_of(prefix, queue, key, lane)
  local group = limit.private and key .. " " .. shape_of(lane) or shared_of(lane)
  if before == group then
    move_group(prefix, queue, group, limit, rules)
  else
    local parked = prefix .. "parked:" .. key .. " " .. queue
    redis.call("ZADD", parked, limit.private and 1 or 0, lane)
    local parts = parts_of(prefix, queue, key, lane)
    weigh(turns, #parts - 1)
    move_parts(prefix, parts, order_name(key, before, queue), order_name(key, group, queue))
    left_group(prefix, queue, key, before)
    enter_group(prefix, queue, group, key, limit, rules)
  end
  leave_ring(prefix, queue, key)
end

-- A lane is ready again, whatever its limits say: whoever meets it asks them. Its parts stand where
-- their first tasks do.
local function unpark(prefix, queue, key, lane, turns)
  local group = group_of(prefix, queue, key, lane)
  local shelf, ready = order_name(key, group, queue), order_name(key, nil, queue)
  redis.call("ZREM", prefix .. "parked:" .. key .. " " .. queue, lane)
  local parts = parts_of(prefix, queue, key, lane)
  weigh(turns, #parts - 1)
  move_parts(prefix, parts, shelf, ready)
  for index = 1, #parts do note_first(prefix, queue, key, parts[index], ready) end
  left_group(prefix, queue, key, group)
  if redis.call("HEXISTS", prefix .. "account:" .. key, "closed") == 0 then
    enter_again(prefix, queue, key)
  end
  if ranked then ranks().rank_again(prefix, queue, key) end
end
