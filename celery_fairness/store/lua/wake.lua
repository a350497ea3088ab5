--[[
  wake: a key may have room, so its open limits become candidates of their queues.

  Every function that changes a key calls wake_waiters, and may call it as often as it likes. Each call checks the
  present state of the key. If more limits wait than one call looks at, the others are due at once. Then `timers` has
  "LEFT KEY", and the look goes on with the first LEFT ones of `waiters:KEY`. Two unfinished looks only look twice. `rules.looks`
  is the number of limits at which the call may still look.
]]

-- One call looks at no more than 64 waiting limits of all keys. A claim looks at 64 more of keys whose time
-- has come.
local PUMPED_AT_MOST = 64

-- Wakes a worker for a queue in which tasks wait, because some may start.
function Wake.wake_queue(ctx, queue)
  if redis.call("HEXISTS", ctx.prefix .. Keys.WAITING, queue) == 1 then Active.wake_worker(ctx, queue) end
end

-- Wakes the queue whose own limit has this key, because the claims passed that queue by as a whole.
function Wake.wake_queue_of(ctx, key)
  local queue = Config.queue_of_whole(ctx, key)
  if queue then Wake.wake_queue(ctx, queue) end
end

-- Looks at the limits that wait at a key. Returns whether any limit waits there. `left` is how many a look that was
-- not finished has not reached. If it is nil, the look begins.
function Wake.check_waiters(ctx, key, rules, left)
  local waited = ctx.prefix .. Keys.WAITERS .. key
  local length = redis.call("LLEN", waited)
  if length == 0 then return false end
  left = math.min(left or length, length)
  local may = rules.looks or PUMPED_AT_MOST
  local looked = math.min(left, may)
  rules.looks = may - looked
  if left > looked then
    redis.call("ZADD", ctx.prefix .. Keys.TIMERS, rules.logical, left - looked .. " " .. key)
  end
  local saved = Saving.look(ctx, key, rules)
  for _ = 1, looked do
    local both = redis.call("LMOVE", waited, waited, "LEFT", "RIGHT")
    local name, queue = string.match(both, "^(%S+) (.*)$")
    local candidates = ctx.prefix .. Keys.AVAILABLE .. queue
    local opened = redis.call("ZSCORE", candidates, name)
    if not opened then
      Stats.count_lost(ctx)
    elseif tonumber(opened) < 0 then
      local named = Limits.limit_now(ctx, name, rules)
      local limit = Saving.limit_at(saved, named, both)
      local wait, _, why = Limits.wait_ms(ctx, limit, rules, both)
      if wait == 0 then
        redis.call("ZADD", candidates, rules.logical, name)
        Active.wake_worker(ctx, queue)
      else
        Blocked.mark_exhausted(ctx, queue, limit, rules)
        Blocked.set_timer(ctx, limit, rules, wait)
        -- No claim looks at the task for which the key saves, so this call notes the permits that the task needs.
        if limit ~= named and why == "full" and limit.permits then Permits.note_short(ctx, limit, rules) end
        if limit ~= named and limit.lacks_lot then Lots.note_short(ctx, limit, rules) end
        if limit.lacks_lot then Lots.note_numbers(ctx, limit, rules) end
      end
    end
  end
  if left > looked then
    Active.wake_worker(ctx, string.match(redis.call("LINDEX", waited, 0), "^%S+ (.*)$"))
  end
  return true
end

function Wake.wake_waiters(ctx, key, rules, left)
  Wake.wake_queue_of(ctx, key)
  Wake.check_waiters(ctx, key, rules, left)
end

-- Returns at how many of these keys something waits.
function Wake.count_waiters(ctx, keys)
  local count = 0
  for first = 1, #keys, Rates.KEYS_AT_ONCE do
    local some = {unpack(keys, first, math.min(#keys, first + Rates.KEYS_AT_ONCE - 1))}
    for index = 1, #some do some[index] = ctx.prefix .. Keys.WAITERS .. some[index] end
    count = count + redis.call("EXISTS", unpack(some))
  end
  return count
end

-- Returns each key of the leases that ended once: the keys of limits, and after them the keys of tenants.
-- Also returns the keys of limits alone.
function Wake.keys_of_ended(ended)
  local keys, limits, met = {}, {}, {}
  for index = 1, #ended do
    for key in string.gmatch(ended[index], ",([^,]+)") do
      if not met[key] then
        keys[#keys + 1] = key
        limits[#limits + 1] = key
      end
      met[key] = true
    end
  end
  for index = 1, #ended do
    local key = string.match(ended[index], "^[^,]+")
    if not met[key] then keys[#keys + 1] = key end
    met[key] = true
  end
  return keys, limits
end

-- Frees the keys of leases that ended. Each lease comes as its keys with commas between them. The key of a
-- limit may be the key of another tenant's tier.
function Wake.free_keys(ctx, ended, rules)
  local keys, limits = Wake.keys_of_ended(ended)
  Rates.stay_known(ctx, limits, rules.logical)
  Permits.note_freed(ctx, limits, rules)
  for index = 1, #keys do
    if string.sub(keys[index], 1, 7) == "tenant:" then Tenants.unblock(ctx, keys[index], rules) end
    Wake.wake_queue_of(ctx, keys[index])
  end
  -- Usually something waits only at one of the first keys.
  local left = Wake.count_waiters(ctx, keys)
  for index = 1, #keys do
    if left == 0 then return end
    if Wake.check_waiters(ctx, keys[index], rules) then left = left - 1 end
  end
end

-- Looks at keys whose time has come, at most `most`, and forgets idle keys and cool-downs. Returns how many
-- keys were due, or `most` if there may be more.
function Wake.check_limits(ctx, rules, most)
  local due = redis.call(
    "ZRANGEBYSCORE", ctx.prefix .. Keys.TIMERS, "-inf", rules.logical, "LIMIT", 0, most)
  rules.looks = PUMPED_AT_MOST
  for index = 1, #due do
    -- The keys that are left keep their turn.
    if rules.looks == 0 then break end
    redis.call("ZREM", ctx.prefix .. Keys.TIMERS, due[index])
    local what, key = string.match(due[index], "^(%w+) (%S+)$")
    if what == "permits" then
      Permits.look(ctx, key, rules)
    elseif what == "grants" then
      Grants.forget(ctx, key, rules)
    elseif what == "quiet" then
      Grants.forget_change(ctx, key)
    else
      Wake.wake_waiters(ctx, key or due[index], rules, tonumber(what))
    end
  end
  local more = Rates.forget_idle(ctx, rules.logical)
  Config.forget_cooled(ctx, rules.logical, most)
  return more and most or #due
end

--[[
  key_changed: people have changed a key, or the time of a change has ended, so its limits may be open.

  The next claims check a tenant again, as after a change of its tier.
]]

-- Makes the tasks due now that the key has put back and remembers, so the next claims check them again. A task
-- that the key puts back from now on, at a gate too, does not wait behind those.
function Wake.reschedule_now(ctx, key, rules)
  local there = ctx.prefix .. Keys.RESCHEDULED .. Backoff.queue_wide_key(key)
  redis.call("HDEL", ctx.prefix .. Keys.BACKOFF .. key, "next")
  local tasks = redis.call("ZRANGEBYSCORE", there, "(" .. Rates.int_text(rules.now), "+inf",
    "WITHSCORES", "LIMIT", 0, Backoff.FORWARD_AT_MOST)
  if #tasks == 0 then return end
  redis.call("UNLINK", there)
  for index = 1, #tasks, 2 do
    local member, queue = string.match(tasks[index], "^(%d+ %S+) (.*)$")
    local later = ctx.prefix .. Keys.SCHEDULED .. queue
    -- The task may have started since, or wait for another time.
    if redis.call("ZSCORE", later, member) == tasks[index + 1] then
      redis.call("ZADD", later, rules.now, member)
      Active.wake_worker(ctx, queue)
    end
  end
end

-- A pattern has other numbers, so any limit may be open. Claims look again at those that are closed now.
function Wake.pattern_changed(ctx)
  local clock, limits = ctx.prefix .. Keys.CLOCK, ctx.prefix .. Keys.QUEUE_LIMITS
  local version = redis.call("HINCRBY", clock, "queues_version", 1)
  local queues = redis.call("HKEYS", ctx.prefix .. Keys.WAITING)
  for index = 1, #queues do
    if redis.call("EXISTS", ctx.prefix .. Keys.AVAILABLE .. queues[index]) == 1 then
      redis.call("HSET", limits, "look " .. queues[index], version)
      redis.call("HSET", clock, "looks_again", 1)
      ctx.looks_again = "1"
      Active.wake_worker(ctx, queues[index])
    end
  end
end

-- Claims have looked again at every closed limit of a queue, or the queue has none any more.
function Wake.has_looked(ctx, queue)
  local limits = ctx.prefix .. Keys.QUEUE_LIMITS
  if redis.call("HDEL", limits, "look " .. queue) == 0 then return end
  local fields = redis.call("HKEYS", limits)
  for index = 1, #fields do
    if string.find(fields[index], "^look ") then return end
  end
  redis.call("HDEL", ctx.prefix .. Keys.CLOCK, "looks_again")
  ctx.looks_again = nil
end

function Wake.key_changed(ctx, key, rules)
  Config.note_overrides(ctx)
  if Config.is_pattern(key) then return Wake.pattern_changed(ctx) end
  if string.sub(key, 1, 7) == "tenant:" then
    rules.version = redis.call("HINCRBY", ctx.prefix .. Keys.CLOCK, "version", 1)
  end
  Wake.wake_waiters(ctx, key, rules)
  Wake.reschedule_now(ctx, key, rules)
end

-- Ends pauses and overrides whose time has come, at most `most`. Returns how many.
function Wake.end_changes(ctx, rules, most)
  local over = redis.call("ZRANGEBYSCORE", ctx.prefix .. Keys.CHANGES_END, "-inf", rules.now, "LIMIT", 0, most)
  for index = 1, #over do
    local what, key = string.match(over[index], "^(%a+) (.*)$")
    Config.end_change(ctx, what, key)
    if what == "pause" then
      Events.write_event(ctx, "fairness.resumed", "key", key, "by", "")
    else
      Grants.numbers_changed(ctx, key, rules)
      Events.write_event(ctx, "fairness.override_ended", "key", key)
    end
    Wake.key_changed(ctx, key, rules)
  end
  return #over
end

-- Returns the time until the next pause or override ends, at most `longest`.
function Wake.change_ends_ms(ctx, now, longest)
  local first = redis.call("ZRANGE", ctx.prefix .. Keys.CHANGES_END, 0, 0, "WITHSCORES")[2]
  return math.min(longest, tonumber(first or math.huge) - now)
end

-- If a new task changes the numbers of a key, the tasks that wait at this key are looked at again.
function Wake.declare(ctx, limits, is_new, now)
  local waiting = Config.check_again(ctx, Config.declare(ctx, limits, is_new, now))
  for index = 1, #waiting do
    local first = redis.call("LINDEX", ctx.prefix .. Keys.WAITERS .. waiting[index], 0)
    Active.wake_worker(ctx, string.match(first, "^%S+ (.*)$"))
  end
end
