--[[
  move: waiting tasks go to another queue, that of their tenant's new tier; each keeps its place among
  all tasks, its time and its expiry; where a queue is partitioned it has the partition that it is given,
  or that of tasks that say none. One that runs, or is not there any more, is left as it is.

  KEYS[1]  prefix     str  what every key of the installation begins with

  ARGV[1]  queue      str  where they wait
  ARGV[2]  target     str  where they go to
  ARGV[3+] pairs      str  a record, as it was read where the task waits, and the key of its partition
                           in the target, or ""

  Returns for each 1 where it was moved by this call, else 0.
]]
--- @include "partition"
--- @include "removing"
--- @include "until"
--- @include "waiting"
--- @later limited "limited"
local prefix, queue, target = KEYS[1], ARGV[1], ARGV[2]
ranked = redis.call("HGET", prefix .. "clock", "ranked")

if queue == target then return redis.error_reply("move: expected two queues, got: " .. queue) end

local function move(task, message, record, part)
  local due = remove_waiting(prefix, queue, task, record)
  if not due then return false end
  task.limits = in_partition(prefix, target, without_partition(task.limits), part)
  local ends_at = redis.call("ZSCORE", prefix .. "expires:" .. queue, task.tag)
  if ends_at then
    redis.call("ZREM", prefix .. "expires:" .. queue, task.tag)
    redis.call("ZADD", prefix .. "expires:" .. target, ends_at, task.tag)
  end
  if due == true then
    enqueue_back(prefix, target, task, message)
  else
    wait_until(prefix, target, task, message, due)
  end
  return true
end

local answer = {}
for index = 3, #ARGV, 2 do
  local task, message = read_record(ARGV[index])
  answer[#answer + 1] = move(task, message, ARGV[index], ARGV[index + 1]) and 1 or 0
end
return answer
