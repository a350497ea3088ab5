--[[
  Lanes: the waiting tasks of one queue, one tenant, one rank and one set of limits, first in, first
  out; and what is counted of them: `waiting` by queue, `account:KEY` by tenant and queue.

  What was taken out and comes back stands in parts of its own (`back`), one for each kind, by sequence
  number. It is served first, because whatever was taken out is older than all that is left.

  `ready:KEY QUEUE` orders the parts of a tenant's lanes that no limit keeps, each named LANE or
  `LANEb KIND`, where a lane is RANK or `RANK,LIMITS`: by rank and by the sequence number of the first
  task, as it was noted last. A parked lane's parts stand in `shelf:KEY GROUP QUEUE`, in that order;
  `parked:KEY QUEUE` says of each parked lane whether it waits alone. `kinds:KEY LANE QUEUE` says of a
  lane with limits which kinds came back.
]]
--- @include "record"
--- @include "ring"
-- Make what only tasks with limits need (limited.lua), what mostly is not (rare.lua), and what is only
-- where tenants are charged by time (correcting.lua).
local limited, rare, timed

local function list_name(key, lane, queue)
  return "lane:" .. key .. " " .. lane .. " " .. queue
end

local function back_name(key, lane, kind, queue)
  return "back:" .. key .. " " .. lane .. " " .. kind .. " " .. queue
end

-- Returns the lane of a part, and its kind; nil where it is of none.
local function read_part(part)
  if #part == 1 then return part end
  local lane, kind = string.match(part, "^(%S+)b (.*)$")
  return lane or part, kind
end

local function order_name(key, group, queue)
  if group then return "shelf:" .. key .. " " .. group .. " " .. queue end
  return "ready:" .. key .. " " .. queue
end

-- Whether what was found goes before who stands at `start`, of a rank where the highest goes first. Of equals
-- it does: what is parked was met before.
local function goes_first(found, rank, start)
  local its = string.sub(found.part, 1, 1)
  if rank and its ~= rank then return its > rank end
  return found.start <= start
end

--- @later ranks "ranks"

-- More than there will be sequence numbers; with a rank before it, not more than a double holds.
local AFTER_ALL = 2 ^ 49

local function note(prefix, order, part, seq)
  local rank = tonumber(string.sub(part, 1, 1))
  redis.call("ZADD", prefix .. order, string.format("%.0f", (9 - rank) * AFTER_ALL + seq), part)
end

-- By the task that is first in a part now; a part that is empty goes.
local function note_first(prefix, queue, key, part, order)
  local lane, kind = read_part(part)
  local seq
  if kind then
    seq = redis.call("ZRANGE", prefix .. back_name(key, lane, kind, queue), 0, 0, "WITHSCORES")[2]
  else
    local head = redis.call("LINDEX", prefix .. list_name(key, lane, queue), 0)
    seq = head and string.match(head, "^%d+")
  end
  if seq then
    note(prefix, order, part, tonumber(seq))
  else
    redis.call("ZREM", prefix .. order, part)
  end
end
