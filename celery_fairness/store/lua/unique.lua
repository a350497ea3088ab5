--[[
  unique: of all accepted tasks with one unique key, at most one has not ended.

  The hash `unique` has two fields for each key:

    key KEY    SINCE TAG: the tag of the task that has the key, and the server time (ms) of the put that took the key
               while nobody had it
    task TAG   the key of that task

  A task has its key until it ends, while a retry of it takes the key over. So no key outlives the record of its task. A
  dead letter has ended, and has no key. A task that was accepted before, such as a retry or the next one of a chain,
  is put in any case. It takes the key only if nobody has it.

  `unique` in the clock is set when the first task with a key comes. Until then no call reads the hash.
]]

-- A put does not read the logical time. A worker may write the result of a duplicate at once.
local AT_ONCE = {logical = 0}

-- Reads ACTION|LATEST_MS|KEY, which is a word of a put. The action is d (drop), e (existing) or r (replace).
function Unique.read(word)
  local action, latest_ms, key = string.match(word, "^([der])|(%d+)|(%S+)$")
  return action and {action = action, latest_ms = tonumber(latest_ms), key = key}
end

-- Returns the task that has a key and since when the key is taken, or nil.
function Unique.holder(ctx, key)
  local since, tag = string.match(redis.call("HGET", ctx.prefix .. Keys.UNIQUE, "key " .. key) or "", "^(%d+) (.+)$")
  local task = tag and Tasks.read(ctx, tag)
  if task then return task, tonumber(since) end
  if tag then Stats.count_lost(ctx) end
end

function Unique.take(ctx, key, tag, since)
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "unique", 1)
  redis.call("HSET", ctx.prefix .. Keys.UNIQUE, "key " .. key, string.format("%.0f ", since) .. tag, "task " .. tag, key)
end

-- Returns the key of a task, or nil if it has none.
function Unique.key_of(ctx, tag)
  return redis.call("HGET", ctx.prefix .. Keys.UNIQUE, "task " .. tag) or nil
end

-- A task has ended. If another task has taken its key over, that task keeps the key.
function Unique.give(ctx, tag)
  if ctx.unique == nil then ctx.unique = redis.call("HGET", ctx.prefix .. Keys.CLOCK, "unique") end
  local key = ctx.unique and Unique.key_of(ctx, tag)
  if not key then return end
  redis.call("HDEL", ctx.prefix .. Keys.UNIQUE, "task " .. tag)
  local held = redis.call("HGET", ctx.prefix .. Keys.UNIQUE, "key " .. key)
  if held and string.match(held, "^%d+ (.+)$") == tag then redis.call("HDEL", ctx.prefix .. Keys.UNIQUE, "key " .. key) end
end

-- Returns whether a task that has a key waits. Otherwise it runs.
function Unique.waits(ctx, task)
  return redis.call("HEXISTS", ctx.prefix .. Keys.RUNNING, task.tag) == 0
end

-- Returns whether two messages belong to one task.
function Unique.is_same(held, task)
  return held.id ~= "" and held.id == task.id
end

-- A waiting task ends, because a newer task with its key replaces it. Returns whether it waited.
function Unique.replace(ctx, held, by)
  if not Lanes.remove_waiting(ctx, held) then return false end
  if Unique.is_same(held, by) then
    Tasks.forget(ctx, held)
    return true
  end
  redis.call("ZREM", ctx.prefix .. Keys.EXPIRES .. held.queue, held.tag)
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "replaced", 1)
  Events.write_event_of(ctx, "fairness.replaced", held, "by", Events.id_of(by))
  Settle.leave_outcome(ctx, AT_ONCE, held, "replaced", Events.id_of(by))
  return true
end

-- A new task ends, because `held` has its key. Its record stays until a worker has written its result.
function Unique.drop(ctx, task, held)
  task.seq = Tasks.next_seq(ctx)
  Tasks.add_id(ctx, task)
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "duplicates", 1)
  Events.write_event_of(ctx, "fairness.duplicate", task, "of", Events.id_of(held))
  Settle.leave_outcome(ctx, AT_ONCE, task, "duplicate", Events.id_of(held))
end
