--[[
  slots: how many leases a key has, and whether one more fits.

  `leases:KEY` has each lease that counts at the key, with the logical time at which it began. A call counts the members, so
  a lease counts until a call ends it.

  Invariant: no other module names this table.
]]

-- Returns the name of the table, without the prefix.
function Slots.table_of(key)
  return Keys.LEASES .. key
end

-- Returns how many leases the table of a key has.
function Slots.count(ctx, key)
  return redis.call("ZCARD", ctx.prefix .. Keys.LEASES .. key)
end

-- Returns how many leases a key has. A function that ends no lease within its call may keep the number in
-- `ctx.memo.held`.
function Slots.held(ctx, key)
  local known = ctx.memo.held
  local held = known and known[key] or Slots.count(ctx, key)
  if known then known[key] = held end
  return held
end

-- Returns how many more leases a limit lets begin. The limit -1 is unlimited.
function Slots.free(limit, held)
  return limit < 0 and math.huge or math.max(0, limit - held)
end

-- Returns whether one more lease of a key fits under its limit, and how many it has.
function Slots.fits(ctx, key, limit)
  local held = Slots.held(ctx, key)
  return limit < 0 or held < limit, held
end

-- A lease of a key begins. If the lease stood there already, it may be in the number of `ctx.memo.held` or not. Then the
-- number is dropped.
function Slots.take(ctx, key, lease, rules)
  local is_new = redis.call("ZADD", ctx.prefix .. Keys.LEASES .. key, Rates.int_text(rules.logical), lease) == 1
  local known = ctx.memo.held
  local held = known and known[key]
  if held then known[key] = is_new and held + 1 or nil end
end

-- A lease of a key ends.
function Slots.give(ctx, key, lease)
  redis.call("ZREM", ctx.prefix .. Keys.LEASES .. key, lease)
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

-- Returns how many of these leases count at a key.
function Slots.count_of(ctx, key, leases)
  local began, count = redis.call("ZMSCORE", ctx.prefix .. Keys.LEASES .. key, unpack(leases)), 0
  for index = 1, #leases do
    if began[index] then count = count + 1 end
  end
  return count
end
