--[[
  whole: the limit of a queue as a whole, asked before anything of the queue is looked at.

  Where it is closed and lets wait, nothing is parked: the claim passes by the queue, however much waits
  there. What people or a time open, or a lease that ends, rings the bell (pump.lua).
]]
--- @include "candidates"
--- @include "closed"

-- Whether one of some queues says how many slots one process may hold.
local function are_local(prefix, queues, rules)
  if rules.enforcement ~= "on" then return false end
  for index = 1, #queues do
    local row = queue_row(prefix, queues[index], rules)
    if row and row.of_process then return true end
  end
  return false
end

-- What a queue's limit refuses, as `refusal` says it; nil where it is open. Of a queue that is passed by
-- the task is told whose turn it would be. Where this process holds as much as it may it is the row.
local function look_at_queue(prefix, queue, rules, turns, look)
  local row = queue_row(prefix, queue, rules)
  local refused = row and refusal(prefix, row.word, rules)
  if row and not refused and look and look.is_local and not row.parts and row.of_process
    and (look.held[row.key] or 0) >= row.of_process then
    look.places[queue] = look.places[queue] or 0
    return row
  end
  if not refused or refused.action or turns.shut[queue] then return refused or nil end
  turns.shut[queue] = true
  local wait = wait_ms(prefix, refused, rules)
  turns.sleep_ms = math.min(turns.sleep_ms, math.ceil(wait))
  local key = member_at(prefix, queue, 0, turns.ranked[queue])[1]
  local part = key and redis.call("ZRANGE", prefix .. order_name(key, nil, queue), 0, 0)[1]
  if part then block_by_limit(prefix, queue, key, part, refused, rules, turns) end
  return refused
end

-- The record of a task that starts, with the limit of its queue, which it has while it runs.
local function add_whole(prefix, queue, task, record, rules)
  local row = queue_row(prefix, queue, rules)
  if not row then return record end
  local held, message = read_record(record)
  held.limits = held.limits == "" and row.word or held.limits .. "," .. row.word
  task.limits = held.limits
  return write_record(held, message)
end

-- Looks at partitions of queues that were found closed by older numbers, at most `most` of each and by
-- each reason. Returns whether there may be more.
local function look_anew(prefix, queues, rules, most)
  local more = false
  for index = 1, #queues do
    local row = queue_row(prefix, queues[index], rules)
    for closed = row and PAUSED or 0, CLOSED do
      local older = redis.call("ZRANGEBYSCORE", prefix .. "candidates:" .. queues[index],
        string.format("(%.17g", closed - row.version / VERSIONS), "(" .. closed, "LIMIT", 0, most)
      for each = 1, #older do
        redis.call("ZADD", prefix .. "candidates:" .. queues[index], rules.logical, older[each])
      end
      more = more or #older == most
    end
  end
  return more
end
