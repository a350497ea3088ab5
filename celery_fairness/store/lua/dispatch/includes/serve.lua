--[[
  serve: start the first task of a tenant that has room, or of one lane, and charge it.

  `rules` is as for judge, and owner, nonce, ends_at (of a lease that begins now), fairness_by, timed,
  virtual: by queue, the ring's time as far as this claim has read it; held: by key, how many leases it
  has, as far as this claim has counted them; limits: by word, as far as it has read them; and passed: by
  key, the time that no tag of it is behind, as far as it knows.
]]
--- @include "charging"
--- @include "leases"
--- @include "minutes"
--- @include "taking"
--- @include "took"

-- What a task of a tenant is expected to take of whom nothing is known.
local FIRST_SECONDS = 1

-- What a task charges, before the weight.
local function expected_of(prefix, task, rules)
  if rules.fairness_by == "runtime" then
    return tonumber(redis.call("HGET", prefix .. "account:" .. task.key, "mean") or FIRST_SECONDS)
  end
  return rules.fairness_by == "cost" and task.cost or 1
end

-- Remembers how a task was charged, which its end puts right.
local function note_charge(prefix, queue, lease, expected, weight, finish, rules)
  if not rules.timed then redis.call("HSET", prefix .. "clock", "timed", 1) end
  rules.timed = true
  redis.call("HSET", prefix .. "charged", lease,
    string.format("%.17g %.17g %.0f %.17g ", expected, weight, rules.logical, finish) .. queue)
end

-- Returns the lease, the task, its message, and what it charges before the weight.
local function lease_task(prefix, queue, found, record, rules)
  local key, weight = found.key, found.verdict.weight
  local task, message, next_record = start_record(record, key)
  local lease = task.tag .. "." .. task.attempt .. "." .. rules.nonce
  local expected = expected_of(prefix, task, rules)
  if rules.queued then next_record = limited().add_whole(prefix, queue, task, next_record, rules) end
  if task.limits ~= "" then
    limited().take_limits(prefix, task, lease, rules, charge_of(expected, weight), found)
  end
  if string.find(task.blocked, "|", 1, true) then
    -- What is made already says it.
    if task.limits ~= "" then
      limited().tell_unblocked(prefix, queue, task, message)
    else
      rare().tell_unblocked(prefix, queue, task, message)
    end
  end
  begin_lease(prefix, key, lease, rules)
  redis.call("ZADD", prefix .. "ends", rules.ends_at, lease)
  redis.call("HSET", prefix .. "running", lease,
    write_running(rules.owner, "claimed", queue, next_record, since_now(rules, task.kind)))
  return lease, task, message, expected
end

-- Returns nothing where somebody has deleted the lane: the others of the queue go on.
-- A tenant whose limit is full now stays in the ring: mostly a task has ended before it is its turn.
-- `found` says key, part, start and verdict; of what is parked too its lane, its group, the limit at which that
-- waits (name, limit_key), its tag there, when it was due there last (due), whether it is in `full` (is_out),
-- whether nothing else of the queue may be open (alone), and the ring's first as it was read (member).
local function serve(prefix, queue, found, rules, turns)
  local key, group, start, waiting = found.key, found.group, found.start, found.verdict.waiting
  local record, is_last, is_gone = pop_part(prefix, queue, key, found.part, group, found.others, waiting)
  if not record then
    leave_ring(prefix, queue, key)
    return nil
  end
  local lease, task, message, expected = lease_task(prefix, queue, found, record, rules)
  note_start(rules, task, found.verdict.tier, queue)
  if rules.expiring then redis.call("ZREM", prefix .. "expires:" .. queue, task.tag) end
  local ring_at = rules.virtual[queue] or virtual_time(prefix, queue)
  if start > ring_at then redis.call("HSET", prefix .. "virtual", queue, start) end
  rules.virtual[queue] = math.max(start, ring_at)
  -- Who was passed over and lags behind the ring has no credit for it; who was charged too much has.
  local by_runtime = rules.fairness_by == "runtime"
  local weight = found.verdict.weight
  local finish = (by_runtime and start or rules.virtual[queue]) + charge_of(expected, weight)
  if by_runtime then note_charge(prefix, queue, lease, expected, weight, finish, rules) end
  if group and (not is_gone
    or redis.call("ZSCORE", prefix .. "parked:" .. key .. " " .. queue, found.lane)) then
    limited().served(prefix, queue, found, task, turns, is_last)
  end
  if task_left(prefix, queue, key, finish, waiting, rules.virtual[queue]) > 0 then
    local ring, full = prefix .. "ring:" .. queue, prefix .. "full:" .. queue
    if found.is_out then ring = full end
    redis.call("ZADD", ring, finish, key)
    if is_last and not group then
      leave_ring(prefix, queue, key)
    elseif ranked then
      ranks().rank_again(prefix, queue, key)
    end
  end
  return lease, task, message
end
