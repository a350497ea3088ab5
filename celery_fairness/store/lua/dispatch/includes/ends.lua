--[[
  ends: what became of a claimed task, told with its lease and its lane as "key rank queue".

  Twice is harmless, and so is a lease that has ended: its task waits again. Where its attempt reports
  an end all the same and nobody has claimed it since, it is taken out of its lane: it must not run
  twice.

  Returns a code.
    1 SETTLED   2 WITHDRAWN   0 LATE
]]
--- @include "leases"

local function settle_late(prefix, rules, lease, verdict, lane_text)
  local key, rank, queue = string.match(lane_text, "^(%S+) (%d) (.*)$")
  if verdict == "begun" or not key then return 0 end
  -- A lease that was entered again after Redis had lost its memory is counted, and nothing else.
  if verdict ~= "acked" and redis.call("ZREM", prefix .. "leases:" .. key, lease) == 1 then
    reopen(prefix, key, rules)
  end
  if verdict ~= "done" and verdict ~= "acked" then return 0 end
  local tag = string.match(lease, "^(.+)%.%d+$")
  return tag and withdraw(prefix, queue, key, rank, tag) and 2 or 0
end

local function settle(prefix, rules, lease, verdict, lane_text)
  local row = redis.call("HGET", prefix .. "running", lease)
  if not row then return settle_late(prefix, rules, lease, verdict, lane_text) end
  local owner, state, queue, record = read_running(row)
  if verdict == "begun" or verdict == "acked" then
    if state == "acked" then return 1 end
    redis.call("HSET", prefix .. "running", lease, write_running(owner, verdict, queue, record))
    return 1
  end
  local task, message = read_record(record)
  end_lease(prefix, lease, task.key)
  if verdict == "done" or state == "acked" then
    redis.call("SREM", prefix .. "known", task.tag)
  elseif verdict == "tail" then
    task.seq = redis.call("INCR", prefix .. "sequence")
    enqueue(prefix, queue, task, message, false, false)
  elseif verdict == "died" then
    after_death(prefix, rules, owner, queue, task, message)
  elseif verdict == "unreadable" then
    bury(prefix, rules, verdict, owner, queue, task, message)
  else
    enqueue(prefix, queue, task, message, false, true)
  end
  reopen(prefix, task.key, rules)
  return 1
end
