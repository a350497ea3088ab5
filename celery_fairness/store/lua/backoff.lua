--[[
  backoff: the time at which a task that a limit puts back is tried again.

  The first task is tried when the window opens, or when the first lease of a full limit is expected to end.
  Then one task follows the other, as far apart as the key lets them start. All tasks that would come after the
  snooze come at the snooze.
]]

-- The opening time of a full limit is unknown, so a task is tried again after at least this time.
Backoff.TRY_AGAIN_MS = 1000
-- The distance between two tasks is 1.03 times the distance that a rate or a throttle demands. Their jitter
-- is at most a hundredth of the period.
local APART, JITTER_OF_PERIOD = 1.03, 100
-- The jitter is at most a quarter of the wait, and at most 1000 ms.
Backoff.JITTER_PARTS, Backoff.JITTER_MS = 4, 1000
-- The last lease has one eighth of the weight in the mean.
local LEASE_PARTS = 8
-- The server keeps the backoff of a key for this time after its last lease or task.
local BACKOFF_KEPT_MS = 3600000
-- A key remembers at most 100 tasks that it has put back.
Backoff.FORWARD_AT_MOST = 100

-- A task starts that has `limit`, as a call checks it now.
function Backoff.note_begin(ctx, limit, rules)
  if not limit.concurrency or limit.on_limit ~= "r" then return end
  if not rules.has_backoff then redis.call("HSET", ctx.prefix .. Keys.CLOCK, "has_backoff", 1) end
  rules.has_backoff = true
  redis.call("HSET", ctx.prefix .. Keys.BACKOFF .. limit.key, "puts_back", 1)
  redis.call("PEXPIRE", ctx.prefix .. Keys.BACKOFF .. limit.key, BACKOFF_KEPT_MS)
end

-- A lease has ended at a logical time. `row` is its row of `running`.
function Backoff.note_end(ctx, row, at)
  local lived = math.max(0, at - tonumber(string.match(row.since, "^@(%d+)")))
  for key in string.gmatch(row.keys, "[^,]+") do
    local backoff_key = ctx.prefix .. Keys.BACKOFF .. key
    local known = redis.call("HMGET", backoff_key, "mean", "puts_back")
    if known[2] then
      local mean = tonumber(known[1])
      mean = mean and mean + (lived - mean) / LEASE_PARTS or lived
      redis.call("HSET", backoff_key, "mean", string.format("%.17g", mean))
      redis.call("PEXPIRE", backoff_key, BACKOFF_KEPT_MS)
    end
  end
end

-- Returns how long a slot of a limit is held, divided by the number of slots. If a lease has begun, also
-- returns the time until the first lease is expected to end. If no lease has begun for longer than the mean,
-- the leases live as long as that.
function Backoff.slot_ms(ctx, limit, mean, rules)
  local first, last = Slots.since_at(ctx, limit.key, 0), Slots.since_at(ctx, limit.key, -1)
  local lives = mean or Backoff.TRY_AGAIN_MS
  if last then lives = math.max(lives, rules.logical - last) end
  return lives / limit.concurrency, first and first + lives - rules.logical or 0
end

-- Returns how much longer a task waits, so that tasks that were rejected at once come one by one.
function Backoff.jitter_ms(name, wait, longest)
  local most = math.floor(math.min(wait / Backoff.JITTER_PARTS, longest))
  return tonumber(string.sub(redis.sha1hex(name), 1, 8), 16) % (most + 1)
end

-- Returns how long the next task waits that a limit puts back, and includes the jitter of its name. The last tasks come
-- together, and their jitter is at most `last`. `rejected` is as Limits.check returns it: `says` is the limit, and after
-- `again_ms` the task may be tried again. For a full limit, that is the least time.
function Backoff.wait_ms(ctx, rejected, rules, name, last)
  local limit, again = rejected.says, rejected.again_ms
  local backoff_key, interval = ctx.prefix .. Keys.BACKOFF .. limit.key, Rates.interval_of(limit.throttle)
  local jitter = Backoff.JITTER_MS
  local known = redis.call("HMGET", backoff_key, "mean", "next")
  if interval > 0 then jitter = math.min(jitter, interval / JITTER_OF_PERIOD) end
  for starts, period_ms in Rates.windows_of(limit.rate) do
    interval = math.max(interval, period_ms / starts)
    jitter = math.min(jitter, period_ms / JITTER_OF_PERIOD)
  end
  interval = interval * APART
  if limit.concurrency then
    local slot, ends = Backoff.slot_ms(ctx, limit, tonumber(known[1]), rules)
    interval = math.max(interval, slot)
    if rejected.why == "full" then again = math.max(again, math.min(ends > 0 and ends or slot, rules.snooze_ms)) end
  end
  local most = math.max(again, rules.snooze_ms)
  local wait = math.min(math.max(again, (tonumber(known[2]) or 0) - rules.now), most)
  redis.call("HSET", backoff_key, "next", string.format("%.17g", rules.now + wait + interval))
  redis.call("PEXPIRE", backoff_key, BACKOFF_KEPT_MS)
  return math.ceil(wait) + Backoff.jitter_ms(name, math.ceil(wait), wait < most and jitter or last)
end

-- Returns the key of the whole queue for the key of a partition, and any other key as it is.
function Backoff.queue_wide_key(key)
  return string.match(key, "^queue:[^:]+") or key
end

-- Returns whether a key has put back a task, if the task is one of the first that the key remembers.
function Backoff.has_rescheduled(ctx, key, task)
  local there = ctx.prefix .. Keys.RESCHEDULED .. Backoff.queue_wide_key(key)
  return redis.call("ZSCORE", there, Schedule.member_of(task) .. " " .. task.queue) ~= false
end

-- Remembers a task that a key has put back.
function Backoff.remember_rescheduled(ctx, key, queue, task, wait, rules)
  local there = ctx.prefix .. Keys.RESCHEDULED .. Backoff.queue_wide_key(key)
  redis.call("ZREMRANGEBYSCORE", there, "-inf", rules.now)
  if redis.call("ZCARD", there) >= Backoff.FORWARD_AT_MOST then return end
  redis.call("ZADD", there, rules.now + wait, Schedule.member_of(task) .. " " .. queue)
  redis.call("PEXPIRE", there, math.max(BACKOFF_KEPT_MS, wait))
end
