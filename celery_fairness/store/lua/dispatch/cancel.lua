--[[
  cancel: take waiting tasks out of a queue for good, in a lane or until their time; a worker writes
  that they were revoked. One that runs, or is not there any more, is left as it is.

  KEYS[1]  prefix     str  what every key of the installation begins with

  ARGV[1]  queue      str  where they wait
  ARGV[2]  lease_ms   int  how long a lease lives without a renewal
  ARGV[3]  frozen_ms  str  "" in production (server TIME); set only by tests
  ARGV[4+] record     str  each as it was read where it waits

  Returns for each 1 where it was cancelled, by this call or by one before, else 0.
]]
--- @include "events"
--- @include "later"
--- @include "obituaries"
--- @include "removing"
--- @include "tick"
--- @later limited "limited"
local prefix, queue, lease_ms, frozen_ms = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- Who owns what nobody held.
local NOBODY = "-"

local logical, _, _, said = tick(prefix .. "clock", lease_ms, frozen_ms)
ranked = said.ranked

local answer = {}
for index = 4, #ARGV do
  local task, message = read_record(ARGV[index])
  local gone = remove_waiting(prefix, queue, task, ARGV[index])
  local row = write_running(NOBODY, "cancelled", queue, ARGV[index])
  if gone then
    redis.call("SREM", prefix .. "known", task.tag)
    redis.call("ZREM", prefix .. "expires:" .. queue, task.tag)
    redis.call("HINCRBY", prefix .. "counts", "cancelled", 1)
    write_event_of(prefix, "fairness.cancelled", queue, task, message)
    leave_obituary(prefix, {logical = logical}, row)
  else
    -- The call is sent again where its answer was lost on the way.
    gone = redis.call("ZSCORE", prefix .. "obituaries", row)
  end
  answer[#answer + 1] = gone and 1 or 0
end
return answer
