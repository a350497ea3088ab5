--[[
  slots: how many slots of a key are taken, and whether more fit.

  `leases:KEY` has each lease that counts at the key, with the logical time at which it began. A call counts the members, so
  a lease counts until a call ends it. A lease takes one slot, or several. `virtual_times` has by `beside KEY` the slots that
  the leases take beside one each. That changes only when a lease joins or leaves the members, so no second report of an end
  counts. While no task has taken several slots, no call reads it (clock.lua).

  Invariant: no other module names `leases:KEY`.
]]

-- Returns the name of the table of leases, without the prefix.
function Slots.table_of(key)
  return Keys.LEASES .. key
end

-- Returns how many leases the table of a key has.
function Slots.leases(ctx, key)
  return redis.call("ZCARD", ctx.prefix .. Keys.LEASES .. key)
end

-- Returns how many slots the leases of a key take beside one each.
function Slots.beside(ctx, key)
  return ctx.slots and tonumber(redis.call("HGET", ctx.prefix .. Keys.VIRTUAL_TIMES, "beside " .. key)) or 0
end

-- The leases of a key take `more` slots beside one each than before.
function Slots.add_beside(ctx, key, more)
  if more == 0 then return end
  Clock.note_slots(ctx)
  local field = "beside " .. key
  if redis.call("HINCRBY", ctx.prefix .. Keys.VIRTUAL_TIMES, field, more) == 0 then
    redis.call("HDEL", ctx.prefix .. Keys.VIRTUAL_TIMES, field)
  end
end

-- Returns how many slots of a key are taken.
function Slots.count(ctx, key)
  return Slots.leases(ctx, key) + Slots.beside(ctx, key)
end

-- Returns how many slots of a key are taken. A function that ends no lease within its call may keep the number in
-- `ctx.memo.held`.
function Slots.held(ctx, key)
  local known = ctx.memo.held
  local held = known and known[key] or Slots.count(ctx, key)
  if known then known[key] = held end
  return held
end

-- Returns how many slots a task with a limit takes now. A task that takes more than the limit has takes all of it.
function Slots.of_task(limit)
  local slots = limit.slots or 1
  return limit.concurrency and math.max(1, math.min(slots, limit.concurrency)) or slots
end

-- Returns how many slots of a key a lease takes. `amounts` are those of its row (tasks.lua).
function Slots.of_lease(amounts, key)
  local text = amounts and amounts[key]
  return text and Numbers.read(text).slots or 1
end

-- Returns how many more slots a limit has. The limit -1 is unlimited.
function Slots.free(limit, held)
  return limit < 0 and math.huge or math.max(0, limit - held)
end

-- Returns whether one more slot of a key fits under its limit, and how many are taken.
function Slots.fits(ctx, key, limit)
  local held = Slots.held(ctx, key)
  return limit < 0 or held < limit, held
end

-- A lease of a key begins, and takes so many slots, one if `slots` is nil. If the lease stood there already, its slots stay
-- as they were. It may be in the number of `ctx.memo.held` or not, and then the number is dropped.
function Slots.take(ctx, key, lease, rules, slots)
  local is_new = redis.call("ZADD", ctx.prefix .. Keys.LEASES .. key, Rates.int_text(rules.logical), lease) == 1
  if is_new and slots then Slots.add_beside(ctx, key, slots - 1) end
  local known = ctx.memo.held
  local held = known and known[key]
  if held then known[key] = is_new and held + (slots or 1) or nil end
end

-- A lease of a key ends, which takes so many slots.
function Slots.give(ctx, key, lease, slots)
  if redis.call("ZREM", ctx.prefix .. Keys.LEASES .. key, lease) == 1 then Slots.add_beside(ctx, key, 1 - slots) end
end

-- Returns when a lease of a key began, or false if it does not count there.
function Slots.since(ctx, key, lease)
  return redis.call("ZSCORE", ctx.prefix .. Keys.LEASES .. key, lease)
end

-- Returns when the lease at an index began, or nil. The oldest lease has the index 0, and the newest -1.
function Slots.since_at(ctx, key, index)
  return tonumber(redis.call("ZRANGE", ctx.prefix .. Keys.LEASES .. key, index, index, "WITHSCORES")[2])
end

-- Returns the leases of a key between two indexes.
function Slots.page(ctx, key, first, last)
  return redis.call("ZRANGE", ctx.prefix .. Keys.LEASES .. key, first, last)
end

-- Returns how many slots of a key these leases take.
function Slots.count_of(ctx, key, leases)
  local began, count = redis.call("ZMSCORE", ctx.prefix .. Keys.LEASES .. key, unpack(leases)), 0
  local has_beside = Slots.beside(ctx, key) > 0
  for index = 1, #leases do
    if began[index] then
      local row = has_beside and Tasks.row_of(ctx, leases[index])
      count = count + (row and Slots.of_lease(row.amounts, key) or 1)
    end
  end
  return count
end
