--[[
  stream: what happened, told by the script that did it. Ids and times of events are the stream's.

  What tasks do may be a flood. So what people do, what goes wrong, and what is cancelled has a stream of
  its own beside the one of all, with the same ids: see kept_with and `celery_fairness/events.py`.

  events_key  stream  the installation's; its name ends with "events"
  kept_key    stream  the other one
]]

-- So many are kept of each stream, and the rest of a block of it.
local EVENTS_KEPT = 10000

-- Types that are in another stream too, each with a space behind it.
local OF_PEOPLE = "fairness.paused fairness.resumed fairness.override_set fairness.override_ended " ..
  "fairness.queue_limit_set fairness.queue_limit_cleared fairness.tier_set fairness.tier_cleared " ..
  "fairness.tiers_published fairness.cool_down_cleared fairness.purged fairness.requeued "
local OF_TROUBLE = "rate_limit.dynamic_adjusted fairness.lease_expired fairness.abandoned " ..
  "fairness.dead_lettered fairness.memory_lost fairness.unpublished "

-- What stands before "events" in the name of that stream; nil where there is none.
local function kept_with(what)
  if what == "fairness.cancelled" then return "cancel_" end
  if string.find(OF_PEOPLE, what .. " ", 1, true) then return "people_" end
  return string.find(OF_TROUBLE, what .. " ", 1, true) and "trouble_"
end

local function append_event(events_key, what, ...)
  local id = redis.call("XADD", events_key, "MAXLEN", "~", EVENTS_KEPT, "*", "type", what, ...)
  local kept = kept_with(what)
  if kept then
    local kept_key = string.sub(events_key, 1, -1 - #"events") .. kept .. "events"
    redis.call("XADD", kept_key, "MAXLEN", "~", EVENTS_KEPT, id, "type", what, ...)
  end
end

-- `job` is the id, the name and the queue of a task.
local function append_event_of(events_key, what, job, ...)
  append_event(events_key, what, "job_id", job[1], "job_type", job[2], "queue", job[3], ...)
end
