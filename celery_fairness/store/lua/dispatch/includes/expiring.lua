--[[
  expiring: waiting tasks whose expiry has come end where they wait, without a start.

  `expires:QUEUE` has the tags of those that may: each has never started, and waits in `back` or until
  its time, or until its expiry where that comes first.
]]
--- @include "events"
--- @include "obituaries"
--- @include "removing"

-- Ends at most `most` of each queue. Returns whether there may be more.
local function end_expired(prefix, queues, rules, most)
  local more = false
  for index = 1, #queues do
    local queue, ended = queues[index], 0
    local expires = prefix .. "expires:" .. queue
    local due = redis.call("ZRANGEBYSCORE", expires, "-inf", rules.now, "LIMIT", 0, most)
    for place = 1, #due do
      local tag = due[place]
      local record = redis.call("HGET", prefix .. "returned", tag)
      if record then
        local task, message = read_record(record)
        remove_back(prefix, queue, task)
        redis.call("SREM", prefix .. "known", tag)
        redis.call("HINCRBY", prefix .. "counts", "expired_waiting", 1)
        write_event_of(prefix, "fairness.expired", queue, task, message)
        leave_obituary(prefix, rules, write_running("-", "expired", queue, record))
      end
      -- One that is known waits for its time: a later call looks at it.
      if record or redis.call("SISMEMBER", prefix .. "known", tag) == 0 then
        redis.call("ZREM", expires, tag)
        ended = ended + 1
      end
    end
    more = more or ended == most
  end
  return more
end
