--[[
  schedule: tasks that wait for their time. A task whose time has come begins to wait now, and is the last of its
  lane.

  `scheduled:QUEUE` stores them in the order of their times. A member is the task's sequence number in 16 digits, a
  space and its tag. So tasks of one time are in the order of their puts. `scheduled_of:KEY` stores the tags of one tenant's
  tasks by sequence number, so people can cancel or move these without a look at those of others.
]]

function Schedule.member_of(task)
  return string.format("%016.0f ", task.seq) .. task.tag
end

function Schedule.tag_of(member)
  return string.sub(member, 18)
end

-- Returns the time for which the task waited, or nil if it did not wait for one.
function Schedule.remove(ctx, task)
  local later, member = ctx.prefix .. Keys.SCHEDULED .. task.queue, Schedule.member_of(task)
  local due = redis.call("ZSCORE", later, member)
  if not due then return nil end
  redis.call("ZREM", later, member)
  redis.call("ZREM", ctx.prefix .. Keys.SCHEDULED_OF .. task.key, task.tag)
  return due
end

-- Moves tasks whose time has come into their lanes, at most `most`. Returns the time until the next task is
-- due, or nil if no task waits for a time.
function Schedule.enqueue_due(ctx, queue, now, most)
  local later = ctx.prefix .. Keys.SCHEDULED .. queue
  local next_due = redis.call("ZRANGE", later, 0, 0, "WITHSCORES")[2]
  if not next_due or tonumber(next_due) > now then return next_due and tonumber(next_due) - now end
  local due = redis.call("ZRANGEBYSCORE", later, "-inf", now, "WITHSCORES", "LIMIT", 0, most)
  for index = 1, #due, 2 do
    redis.call("ZREM", later, due[index])
    local task = Tasks.read(ctx, Schedule.tag_of(due[index]))
    if task then
      redis.call("ZREM", ctx.prefix .. Keys.SCHEDULED_OF .. task.key, task.tag)
      -- A parked task keeps its place for good.
      if not Promotions.is_parked(queue) then task.seq = Tasks.next_seq(ctx) end
      Lanes.enqueue(ctx, queue, task, false, tonumber(due[index + 1]))
    else
      Stats.count_lost(ctx)
    end
  end
  Queues.forget_empty(ctx, queue)
  -- The next claim looks whether a due task is left.
  return 0
end

-- Does the same for many queues. Returns `longest` if all of them may sleep longer.
function Schedule.enqueue_all_due(ctx, queues, rules, most, longest)
  local later = {}
  for index = 1, #queues do later[index] = ctx.prefix .. Keys.SCHEDULED .. queues[index] end
  -- Usually no task waits for a time.
  if redis.call("EXISTS", unpack(later)) == 0 then return longest end
  local soonest = longest
  for index = 1, #queues do
    local wait = Schedule.enqueue_due(ctx, queues[index], rules.now, most)
    soonest = math.min(soonest, wait or longest)
  end
  return soonest
end

function Schedule.wait_until(ctx, queue, task, eta_ms)
  local later, member = ctx.prefix .. Keys.SCHEDULED .. queue, Schedule.member_of(task)
  task.queue = queue
  Tasks.write(ctx, task)
  redis.call("ZADD", later, eta_ms, member)
  redis.call("ZADD", ctx.prefix .. Keys.SCHEDULED_OF .. task.key, task.seq, task.tag)
  Queues.note(ctx, queue)
  -- A worker that sleeps until a later time must wake and sleep anew.
  if redis.call("ZRANK", later, member) == 0 then Active.wake_worker(ctx, queue) end
end

--[[
  expiring: a waiting task whose expiry has come ends at its place, without a start. A call ends a bounded number of
  them ahead of their turn. The others end when their turn comes (start.lua).

  `expires:QUEUE` stores the tags of the tasks that may expire. None of them has ever started. If the expiry of a
  task comes before its time, the task waits until its expiry.
]]

-- A task has expired that has left its lane.
function Schedule.expire(ctx, task, rules)
  redis.call("ZREM", ctx.prefix .. Keys.EXPIRES .. task.queue, task.tag)
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "expired_waiting", 1)
  Events.write_event_of(ctx, "fairness.expired", task)
  Settle.leave_outcome(ctx, rules, task, "expired", Settle.NOBODY)
end

-- Ends at most `most` tasks of each queue. Returns whether there may be more.
function Schedule.end_expired(ctx, queues, rules, most)
  local more = false
  for index = 1, #queues do
    local queue, ended = queues[index], 0
    local expires = ctx.prefix .. Keys.EXPIRES .. queue
    local due = redis.call("ZRANGEBYSCORE", expires, "-inf", rules.now, "LIMIT", 0, most)
    for place = 1, #due do
      local task = Tasks.read(ctx, due[place])
      -- A task that still waits for its time is looked at by a later call.
      if not task then
        redis.call("ZREM", expires, due[place])
        ended = ended + 1
      elseif Lanes.remove(ctx, task) then
        Schedule.expire(ctx, task, rules)
        ended = ended + 1
      end
    end
    more = more or ended == most
  end
  return more
end

--[[
  due: a claim does a bounded part of the work that is due before it looks for tasks.
]]

-- One call makes at most 16 moves of each kind.
local DUE_AT_MOST = 16

-- Returns whether more work is due, and how long no task of the queues is due, at most `longest`. A call does
-- this work:
-- - end leases that nobody renewed
-- - end pauses and overrides whose time has come
-- - check tenants again that were at their limit before the last config version
-- - look at limits whose time has come
-- - move tasks whose time has come into their lanes
-- - end tasks that have expired
function Schedule.do_what_is_due(ctx, queues, rules, longest)
  local more = rules.has_overrides
    and Wake.end_changes(ctx, rules, DUE_AT_MOST) == DUE_AT_MOST
  more = Leases.expire(ctx, rules, DUE_AT_MOST) == DUE_AT_MOST or more
  more = Tenants.check_again(ctx, rules, DUE_AT_MOST) == DUE_AT_MOST or more
  if rules.limited then
    more = Wake.check_limits(ctx, rules, DUE_AT_MOST) == DUE_AT_MOST or more
  elseif rules.paced then
    more = Rates.forget_idle(ctx, rules.logical) or more
  end
  -- A worker that enforces nothing opens the limits that wait for room or time. Stopped limits stay closed, but not for
  -- parked tasks, because a gate that enforces nothing starts tasks of stopped limits too.
  local from = rules.lets_all_start and "-inf" or "(" .. Blocked.PAUSED
  for index = 1, rules.limited and rules.enforcement ~= "on" and #queues or 0 do
    more = Blocked.check_again(ctx, queues[index], from, Blocked.CLOSED, rules, DUE_AT_MOST) == DUE_AT_MOST
      or more
  end
  if rules.limited then more = Pick.check_again(ctx, queues, rules, DUE_AT_MOST) or more end
  longest = Schedule.enqueue_all_due(ctx, queues, rules, DUE_AT_MOST, longest)
  if rules.expiring then more = Schedule.end_expired(ctx, queues, rules, DUE_AT_MOST) or more end
  return more, longest
end

-- Returns how long nothing opens by itself, at most `longest`.
function Schedule.opens_ms(ctx, rules, longest)
  local opens = rules.limited and redis.call("ZRANGE", ctx.prefix .. Keys.TIMERS, 0, 0, "WITHSCORES")[2]
  if opens then longest = math.min(longest, math.ceil(tonumber(opens) - rules.logical)) end
  if rules.has_overrides then longest = Wake.change_ends_ms(ctx, rules.now, longest) end
  -- Time opens a tenant that has reached the rate of its tier (tenants.lua). Leases rarely end there, as workers renew them.
  local ends = rules.paced and redis.call("ZRANGE", ctx.prefix .. Keys.ENDS, 0, 0, "WITHSCORES")[2]
  if ends then longest = math.min(longest, tonumber(ends) - rules.logical) end
  return math.max(0, longest)
end
