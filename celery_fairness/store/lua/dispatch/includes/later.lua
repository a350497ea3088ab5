--[[
  Tasks that wait for their time, as until.lua wrote them. One whose time has come begins to wait now:
  last in its lane.
]]
--- @include "lanes"

-- So many characters stand before the record, to order those of one time.
local ORDER_LENGTH = 17

-- Returns how long until the next time comes; nil where nothing waits for one.
local function bring_in(prefix, queue, now, expiring, most)
  local later = prefix .. "later:" .. queue
  local next_due = redis.call("ZRANGE", later, 0, 0, "WITHSCORES")[2]
  if not next_due or tonumber(next_due) > now then return next_due and tonumber(next_due) - now end
  local due = redis.call("ZRANGEBYSCORE", later, "-inf", now, "WITHSCORES", "LIMIT", 0, most)
  for index = 1, #due, 2 do
    local since = tonumber(due[index + 1])
    redis.call("ZREM", later, due[index])
    local task, message = read_record(string.sub(due[index], ORDER_LENGTH + 1))
    task.seq = redis.call("INCR", prefix .. "sequence")
    if expiring and redis.call("ZSCORE", prefix .. "expires:" .. queue, task.tag) then
      rare().enqueue_expiring(prefix, queue, task, message, false, since)
    else
      rare().enqueue(prefix, queue, task, message, false, since)
    end
  end
  -- Whether one is left is looked at by the next claim.
  return 0
end

-- The same for many queues. Returns `longest` where all of them may sleep longer.
local function bring_in_all(prefix, queues, rules, most, longest)
  local later = {}
  for index = 1, #queues do later[index] = prefix .. "later:" .. queues[index] end
  -- Mostly nothing does.
  if redis.call("EXISTS", unpack(later)) == 0 then return longest end
  local soonest = longest
  for index = 1, #queues do
    local wait = bring_in(prefix, queues[index], rules.now, rules.expiring, most)
    soonest = math.min(soonest, wait or longest)
  end
  return soonest
end
