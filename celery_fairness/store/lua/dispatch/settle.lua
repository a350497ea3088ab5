--[[
  settle: what became of claimed tasks. Twice is harmless, and so is a lease that has ended.

  A task whose lease has ended waits again. Where its attempt reports an end all the same and nobody
  has claimed it since, it is taken out of its lane: it must not run twice.

  KEYS[1]  prefix         str  what every key of the installation begins with

  ARGV[1]  lease_ms       int  how long a lease lives without a renewal
  ARGV[2]  enforcement    str  "on", "observe" or "off"
  ARGV[3]  default_tier   str  for a tier that is not known
  ARGV[4]  default_limit  str  of the default tier, an integer or "unlimited"
  ARGV[5]  max_deliveries int  deaths after which a task goes to the dead letters; 0: never
  ARGV[6]  frozen_ms      str  "" in production (server TIME); set only by tests
  ARGV[7+] ends           str  triples: the lease; what became of it; its lane as "key rank queue"
             begun  the body runs          acked  and the message is acknowledged
             done   it ended               head   it waits again, in its place
             tail   it waits again, last   died   its process died: as head, until too often
             unreadable    its message cannot be read: it is a dead letter

  Returns one code for each.
    1 SETTLED   2 WITHDRAWN   0 LATE
]]
--- @include "leases"
--- @include "tick"
local prefix, lease_ms, frozen_ms = KEYS[1], tonumber(ARGV[1]), ARGV[6]

local rules = {
  logical = tick(prefix .. "clock", lease_ms, frozen_ms),
  enforcement = ARGV[2], default_tier = ARGV[3], default_limit = ARGV[4],
  max_deliveries = tonumber(ARGV[5]),
  version = tonumber(redis.call("HGET", prefix .. "news", "version") or 0),
}

local function settle_late(lease, verdict, lane_text)
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

local function settle(lease, verdict, lane_text)
  local row = redis.call("HGET", prefix .. "running", lease)
  if not row then return settle_late(lease, verdict, lane_text) end
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

local answer = {}
for index = 7, #ARGV, 3 do
  answer[#answer + 1] = settle(ARGV[index], ARGV[index + 1], ARGV[index + 2])
end
return answer
