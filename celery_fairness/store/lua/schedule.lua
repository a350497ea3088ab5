--[[
  Tasks that wait for their time, as schedule.lua wrote them. One whose time has come begins to wait now:
  last in its lane.
]]

-- So many characters stand before the record, to order those of one time.
Schedule.ORDER_LENGTH = 17

-- Returns how long until the next time comes; nil where nothing waits for one.
function Schedule.bring_in(ctx, queue, now, expiring, most)
  local later = ctx.prefix .. "later:" .. queue
  local next_due = redis.call("ZRANGE", later, 0, 0, "WITHSCORES")[2]
  if not next_due or tonumber(next_due) > now then return next_due and tonumber(next_due) - now end
  local due = redis.call("ZRANGEBYSCORE", later, "-inf", now, "WITHSCORES", "LIMIT", 0, most)
  for index = 1, #due, 2 do
    local since = tonumber(due[index + 1])
    redis.call("ZREM", later, due[index])
    local task, message = Tasks.read_record(string.sub(due[index], Schedule.ORDER_LENGTH + 1))
    task.seq = redis.call("INCR", ctx.prefix .. "sequence")
    if expiring and redis.call("ZSCORE", ctx.prefix .. "expires:" .. queue, task.tag) then
      Lanes.enqueue_expiring(ctx, queue, task, message, false, since)
    else
      Lanes.enqueue(ctx, queue, task, message, false, since)
    end
  end
  -- Whether one is left is looked at by the next claim.
  return 0
end

-- The same for many queues. Returns `longest` where all of them may sleep longer.
function Schedule.bring_in_all(ctx, queues, rules, most, longest)
  local later = {}
  for index = 1, #queues do later[index] = ctx.prefix .. "later:" .. queues[index] end
  -- Mostly nothing does.
  if redis.call("EXISTS", unpack(later)) == 0 then return longest end
  local soonest = longest
  for index = 1, #queues do
    local wait = Schedule.bring_in(ctx, queues[index], rules.now, rules.expiring, most)
    soonest = math.min(soonest, wait or longest)
  end
  return soonest
end

--[[
  until: a task begins to wait for its time: `later:QUEUE`, in the order of the times, and of their
  puts where those are one.
]]

function Schedule.wait_until(ctx, queue, task, message, eta_ms)
  local later = ctx.prefix .. "later:" .. queue
  local member = string.format("%016.0f ", task.seq) .. Tasks.write_record(task, message)
  redis.call("ZADD", later, eta_ms, member)
  -- Who sleeps until a later time must wake and sleep anew.
  if redis.call("ZRANK", later, member) == 0 then Active.ring_bell(ctx, queue) end
end

--[[
  expiring: waiting tasks whose expiry has come end where they wait, without a start.

  `expires:QUEUE` has the tags of those that may: each has never started, and waits in `back` or until
  its time, or until its expiry where that comes first.
]]

-- Ends at most `most` of each queue. Returns whether there may be more.
function Schedule.end_expired(ctx, queues, rules, most)
  local more = false
  for index = 1, #queues do
    local queue, ended = queues[index], 0
    local expires = ctx.prefix .. "expires:" .. queue
    local due = redis.call("ZRANGEBYSCORE", expires, "-inf", rules.now, "LIMIT", 0, most)
    for place = 1, #due do
      local tag = due[place]
      local record = redis.call("HGET", ctx.prefix .. "returned", tag)
      if record then
        local task, message = Tasks.read_record(record)
        Lanes.remove_back(ctx, queue, task)
        redis.call("SREM", ctx.prefix .. "known", tag)
        redis.call("HINCRBY", ctx.prefix .. "counts", "expired_waiting", 1)
        Events.write_event_of(ctx, "fairness.expired", queue, task, message)
        Settle.leave_obituary(ctx, rules, Tasks.write_running("-", "expired", queue, record))
      end
      -- One that is known waits for its time: a later call looks at it.
      if record or redis.call("SISMEMBER", ctx.prefix .. "known", tag) == 0 then
        redis.call("ZREM", expires, tag)
        ended = ended + 1
      end
    end
    more = more or ended == most
  end
  return more
end

--[[
  due: what the time has brought: a claim does a bounded part of it before it looks for tasks.
]]

-- Moves of each kind that one call makes.
local DUE_AT_MOST = 16

-- Ends leases that nobody renewed, and what people said for a time; judges tenants that were found full
-- before the last news; looks at limits whose time came; brings in the tasks whose time came, and ends
-- those that have expired.
-- Returns whether there is more, and how long no task of the queues is due, at most `longest`.
function Schedule.do_what_is_due(ctx, queues, rules, longest)
  local more = rules.steered
    and Wake.end_steering(ctx, rules, DUE_AT_MOST) == DUE_AT_MOST
  more = Leases.expire(ctx, rules, DUE_AT_MOST) == DUE_AT_MOST or more
  more = Tenants.judge_anew(ctx, rules, DUE_AT_MOST) == DUE_AT_MOST or more
  if rules.limited then
    more = Wake.look_at_limits(ctx, rules, DUE_AT_MOST) == DUE_AT_MOST or more
  end
  if rules.limited and rules.enforcement ~= "on" then
    for index = 1, #queues do
      more = Wake.open_all(ctx, queues[index], rules, DUE_AT_MOST) == DUE_AT_MOST or more
    end
  end
  if rules.queued then more = Pick.look_anew(ctx, queues, rules, DUE_AT_MOST) or more end
  longest = Schedule.bring_in_all(ctx, queues, rules, DUE_AT_MOST, longest)
  if rules.expiring then more = Schedule.end_expired(ctx, queues, rules, DUE_AT_MOST) or more end
  return more, longest
end

-- Returns how long nothing opens by itself, at most `longest`.
function Schedule.opens_ms(ctx, rules, longest)
  local opens = rules.limited and redis.call("ZRANGE", ctx.prefix .. "opens", 0, 0, "WITHSCORES")[2]
  if opens then longest = math.min(longest, math.ceil(tonumber(opens) - rules.logical)) end
  if rules.steered then longest = Wake.steering_ends_ms(ctx, rules.now, longest) end
  return math.max(0, longest)
end
