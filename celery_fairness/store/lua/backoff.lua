--[[
  pace: when a task that a limit puts back is tried again.

  That is when its window opens, or the first lease of a full one is expected to end; then one task
  after the other, as far apart as the key lets them start, and at the snooze all others.

  `began:KEY` says when leases of the key began, by the logical clock; `pace:KEY` how long the last ones
  lived in the mean, and the server's time at which the next task is tried again (`next`). Leases begin
  here where a limit with a concurrency says `reschedule`, and at a gate where it says anything, for nothing
  else says since when they are held there; `paced` in the clock says that one did.

  `rescheduled:KEY` remembers where some of these tasks wait, as "PLACE QUEUE" with their time.
]]

-- A full limit does not know when it opens: so soon a task is tried again, at least.
Backoff.TRY_AGAIN_MS = 1000
-- What a rate or a throttle asks to lie between two tasks, they lie so many times that apart; their jitter
-- is at most one of so many parts of its period.
local APART, JITTER_OF_PERIOD = 1.03, 100
-- The jitter is a part of the wait, and not more than this.
Backoff.JITTER_PARTS, Backoff.JITTER_MS = 4, 1000
-- The part that the last lease has in the mean is one of so many.
local LEASE_PARTS = 8
-- What is known of a key is kept so long after its last lease or task.
local PACE_KEPT_MS = 3600000
-- Tasks that a key remembers it has put back.
Backoff.FORWARD_AT_MOST = 100

-- A lease begins of a task that has `limit`, as that is judged now; says whether that is noted.
function Backoff.note_begin(ctx, limit, lease, rules)
  if not limit.concurrency or limit.on_limit ~= "r" and not rules.of_gate then return false end
  if not rules.paced then redis.call("HSET", ctx.prefix .. "clock", "paced", 1) end
  rules.paced = true
  redis.call("ZADD", ctx.prefix .. "began:" .. limit.key, rules.logical, lease)
  return true
end

-- A lease of these keys has ended, told as a word with commas.
function Backoff.note_end(ctx, lease, keys, rules)
  for key in string.gmatch(keys, "[^,]+") do
    local since = redis.call("ZSCORE", ctx.prefix .. "began:" .. key, lease)
    if since then
      redis.call("ZREM", ctx.prefix .. "began:" .. key, lease)
      local lived = math.max(0, rules.logical - tonumber(since))
      local mean = tonumber(redis.call("HGET", ctx.prefix .. "pace:" .. key, "mean"))
      mean = mean and mean + (lived - mean) / LEASE_PARTS or lived
      redis.call("HSET", ctx.prefix .. "pace:" .. key, "mean", string.format("%.17g", mean))
      redis.call("PEXPIRE", ctx.prefix .. "pace:" .. key, PACE_KEPT_MS)
    end
  end
end

-- How long a slot of a limit is held, divided by their number; and where a lease has begun, how soon the
-- first is expected to end. Where none has begun for longer than the mean, they live as long as that.
function Backoff.slot_ms(ctx, limit, mean, rules)
  local began = ctx.prefix .. "began:" .. limit.key
  local first = redis.call("ZRANGE", began, 0, 0, "WITHSCORES")[2]
  local last = redis.call("ZRANGE", began, -1, -1, "WITHSCORES")[2]
  local lives = mean or Backoff.TRY_AGAIN_MS
  if last then lives = math.max(lives, rules.logical - tonumber(last)) end
  return lives / limit.concurrency, first and tonumber(first) + lives - rules.logical or 0
end

-- By how much longer a task waits: those that were refused at once come one by one.
function Backoff.jitter_ms(name, wait, longest)
  local most = math.floor(math.min(wait / Backoff.JITTER_PARTS, longest))
  return tonumber(string.sub(redis.sha1hex(name), 1, 8), 16) % (most + 1)
end

-- Returns how long the next task waits that `limit` puts back, the jitter of its name included: that of the
-- last, which come together, is at most `last`. `again` is how soon it may be tried again, of a full limit
-- the least.
function Backoff.pace_ms(ctx, limit, again, is_full, rules, name, last)
  local pace, interval, jitter = ctx.prefix .. "pace:" .. limit.key, Rates.interval_of(limit.throttle), Backoff.JITTER_MS
  local known = redis.call("HMGET", pace, "mean", "next")
  if interval > 0 then jitter = math.min(jitter, interval / JITTER_OF_PERIOD) end
  for starts, period_ms in Rates.windows_of(limit.rates) do
    interval = math.max(interval, period_ms / starts)
    jitter = math.min(jitter, period_ms / JITTER_OF_PERIOD)
  end
  interval = interval * APART
  if limit.concurrency then
    local slot, ends = Backoff.slot_ms(ctx, limit, tonumber(known[1]), rules)
    interval = math.max(interval, slot)
    if is_full then again = math.max(again, math.min(ends > 0 and ends or slot, rules.snooze_ms)) end
  end
  local most = math.max(again, rules.snooze_ms)
  local wait = math.min(math.max(again, (tonumber(known[2]) or 0) - rules.now), most)
  redis.call("HSET", pace, "next", string.format("%.17g", rules.now + wait + interval))
  redis.call("PEXPIRE", pace, PACE_KEPT_MS)
  return math.ceil(wait) + Backoff.jitter_ms(name, math.ceil(wait), wait < most and jitter or last)
end

-- That of a queue as a whole for a partition of it, any other key as it is.
function Backoff.whole_key(key)
  return string.match(key, "^queue:[^:]+") or key
end

-- A key has put a task back.
function Backoff.remember_later(ctx, key, queue, task, wait, rules)
  local there = ctx.prefix .. "rescheduled:" .. Backoff.whole_key(key)
  redis.call("ZREMRANGEBYSCORE", there, "-inf", rules.now)
  if redis.call("ZCARD", there) >= Backoff.FORWARD_AT_MOST then return end
  redis.call("ZADD", there, rules.now + wait, Rates.whole(task.seq) .. " " .. queue)
  redis.call("PEXPIRE", there, math.max(PACE_KEPT_MS, wait))
end
