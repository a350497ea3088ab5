--[[
  waits: what waits at a limit is looked at again when the limit opens.

  A blocked lane is in `blocked_lanes`. That leads to its group, the group to the limit at which it waits, and the
  limit to `waiters` of its key. If one of these steps is missing, no call wakes the lane.
]]

-- More lanes of a tenant are not repaired (places.lua).
local LANES_AT_MOST, LOOKS_AT_MOST, GROUPS_AT_MOST = 2000, 1000, 100

-- Returns the group and the queue of "GROUP QUEUE". Only the spec of a limit has a bar.
function Waits.read_group(name)
  local first, rest = string.match(name, "^(%S+) (.*)$")
  if string.find(first, "|", 1, true) then return first, rest end
  local lane, queue = string.match(rest, "^(%S+) (.*)$")
  return first .. " " .. lane, queue
end

-- Returns whether each step from a tenant of a group to the looks at its limit is there.
function Waits.leads(it, key, group, queue)
  local ctx = it.ctx
  local limit = redis.call("HGET", ctx.prefix .. Keys.GROUPS .. queue, group)
  return limit
    and redis.call("ZSCORE", ctx.prefix .. Keys.GROUP .. group .. " " .. queue, key)
    and redis.call("ZSCORE", ctx.prefix .. Keys.GROUPS_AT .. limit .. " " .. queue, group)
    and redis.call("ZSCORE", ctx.prefix .. Keys.AVAILABLE .. queue, limit)
    and redis.call("LPOS", ctx.prefix .. Keys.WAITERS .. string.match(limit, "^[^|]*"), limit .. " " .. queue)
end

function Waits.lanes(it, name)
  local key, rest = string.match(name, "^(%S+) (.*)$")
  local group, queue = Waits.read_group(rest)
  local most = it.repairs and LANES_AT_MOST or LOOKS_AT_MOST
  local lanes = redis.call("ZRANGE", it.ctx.prefix .. Keys.BLOCKED_LANES .. name, 0, most)
  if #lanes == 0 then return end
  it.left = it.left - #lanes
  local leads = Waits.leads(it, key, group, queue)
  for index = 1, #lanes do
    leads = leads and Lanes.group_of(it.ctx, queue, key, lanes[index]) == group
  end
  if leads then return end
  Check.found(it, "blocked_lane_lost", Keys.BLOCKED_LANES .. name, "", function()
    Places.rebuild(it, key, queue, lanes, group)
  end)
end

-- Removes a tenant from a group of which other tables may be missing.
function Waits.leave(it, key, group, queue)
  local ctx, members = it.ctx, it.ctx.prefix .. Keys.GROUP .. group .. " " .. queue
  local limit = redis.call("HGET", ctx.prefix .. Keys.GROUPS .. queue, group)
  redis.call("UNLINK", ctx.prefix .. Lanes.order_name(key, group, queue))
  redis.call("ZREM", members, key)
  if redis.call("EXISTS", members) == 1 then
    if limit then Blocked.order_group(ctx, queue, group, limit) end
    return
  end
  redis.call("HDEL", ctx.prefix .. Keys.GROUPS .. queue, group)
  if limit then Blocked.unregister(ctx, queue, group, limit) end
end

function Waits.tenant(it, name, key)
  local group, queue = Waits.read_group(name)
  if redis.call("EXISTS", it.ctx.prefix .. Lanes.order_name(key, group, queue)) == 1 then return end
  if not redis.call("ZSCORE", it.ctx.prefix .. Keys.GROUP .. name, key) then return end
  Check.found(it, "wait_without_task", Keys.GROUP .. name, key, function() Waits.leave(it, key, group, queue) end)
end

function Waits.group(it, name, group)
  local ctx, limit, queue = it.ctx, string.match(name, "^(%S+) (.*)$")
  if not redis.call("ZSCORE", ctx.prefix .. Keys.GROUPS_AT .. name, group) then return end
  local groups = ctx.prefix .. Keys.GROUPS .. queue
  local at = redis.call("HGET", groups, group)
  if at == limit and redis.call("EXISTS", ctx.prefix .. Keys.GROUP .. group .. " " .. queue) == 1 then return end
  Check.found(it, "wait_without_task", Keys.GROUPS_AT .. name, group, function()
    if at == limit then redis.call("HDEL", groups, group) end
    Blocked.unregister(ctx, queue, group, limit)
  end)
end

-- Returns the limit at which the first task waits, as a claim checks it.
function Waits.limit_of_first(it, queue, name)
  local ctx = it.ctx
  local lane, key = Blocked.first_lane(ctx, queue, name)
  if not lane then return end
  for spec in string.gmatch(Lanes.first_limits(ctx, queue, key, lane), "[^,]+") do
    if Limits.name_of(spec) == name then return Limits.limit_now(ctx, spec, it.rules) end
  end
end

-- Returns whether a look at a key is not finished. The next call goes on with it.
function Waits.is_looked_at(it, key)
  local due = redis.call("ZRANGEBYSCORE", it.ctx.prefix .. Keys.TIMERS, "-inf", it.rules.logical, "LIMIT", 0, LOOKS_AT_MOST)
  for index = 1, #due do
    if string.match(due[index], "^%d+ (%S+)$") == key then return true end
  end
end

-- Claims pass by a limit that is marked as closed. Returns whether the limit lets a task start all the same, or lets
-- one start at a time that is not in `timers`.
function Waits.is_left_exhausted(it, queue, name, looked)
  local ctx, key = it.ctx, string.match(name, "^[^|]*")
  if redis.call("ZSCORE", ctx.prefix .. Keys.TIMERS, key) then return end
  -- The next claim of the queue looks at it.
  if redis.call("HEXISTS", ctx.prefix .. Keys.QUEUE_LIMITS, "look " .. queue) == 1 then return end
  if Waits.is_looked_at(it, key) or Check.is_over(it, key) then return end
  local limit = Waits.limit_of_first(it, queue, name)
  -- Claims check a partition again that was found closed by older numbers of its queue.
  if not limit or looked ~= math.ceil(looked) and looked - math.ceil(looked) ~= -(limit.version or 0) / Blocked.VERSIONS then
    return
  end
  -- The end of a lease opens a full limit, even if the limit cools down too.
  local wait, _, why = Limits.wait_ms(ctx, limit, it.rules, Saving.place_of(name, queue))
  local is_full = limit.concurrency and not Slots.fits(ctx, limit.key, limit.concurrency)
  return not is_full and why ~= "full" and wait < math.huge
end

function Waits.limit(it, queue, name)
  local ctx = it.ctx
  local looked = redis.call("ZSCORE", ctx.prefix .. Keys.AVAILABLE .. queue, name)
  if not looked then return end
  if redis.call("EXISTS", ctx.prefix .. Keys.GROUPS_AT .. name .. " " .. queue) == 0 then
    Check.found(it, "wait_without_task", Keys.AVAILABLE .. queue, name, function()
      Blocked.unregister(ctx, queue, "", name)
    end)
  elseif tonumber(looked) < 0 and Waits.is_left_exhausted(it, queue, name, tonumber(looked)) then
    Check.found(it, "limit_left_exhausted", Keys.AVAILABLE .. queue, name, function()
      Wake.wake_waiters(ctx, string.match(name, "^[^|]*"), it.rules)
    end)
  end
end

-- Returns whether a tenant waits at a place. The first groups of the place stand for all, so the answer is true if there
-- are more.
local function waits_at(ctx, place, queue, tenant)
  local groups = redis.call("ZRANGE", ctx.prefix .. Keys.GROUPS_AT .. place, 0, GROUPS_AT_MOST)
  for index = 1, #groups do
    if redis.call("ZSCORE", ctx.prefix .. Keys.GROUP .. groups[index] .. " " .. queue, tenant) then return true end
  end
  return #groups > GROUPS_AT_MOST
end

-- A key saves for a tenant that waits at a place.
function Waits.saving(it, _, field)
  local ctx, key = it.ctx, string.match(field, "^saving (.*)$")
  local saved = key and Saving.of(ctx, key)
  if not saved then return end
  Check.flag(it, "several")
  if saved.slots > 1 then Check.flag(it, "slots") end
  if waits_at(ctx, saved.place, saved.queue, saved.tenant) then return end
  Check.found(it, "saving_without_task", "virtual_times", field, function()
    redis.call("HDEL", ctx.prefix .. Keys.VIRTUAL_TIMES, field)
    Wake.wake_waiters(ctx, key, it.rules)
  end)
end

-- Each text of a window begins with the sum of its entries.
function Waits.window(it, key)
  local ctx, window_key = it.ctx, it.ctx.prefix .. Keys.WINDOW .. key
  local window = Rates.read(ctx, key)
  -- A report needs no starts.
  local is_whole = window.ideal and window.longest or window.left and not window.ideal
  for _, text in pairs(window.texts) do is_whole = is_whole and Rates.add_up(text) == text end
  if is_whole or redis.call("EXISTS", window_key) == 0 then return end
  Check.found(it, "starts_lost", Keys.WINDOW .. key, "", function()
    local left = false
    for period_ms, text in pairs(window.texts) do
      local added_up = Rates.add_up(text)
      if added_up then redis.call("HSET", window_key, Rates.int_text(period_ms), added_up) end
      left = left or added_up
    end
    if left then redis.call("HSETNX", window_key, "ideal", it.rules.logical) else Rates.forget(ctx, key) end
    Wake.wake_waiters(ctx, key, it.rules)
  end)
end

-- Without its flag no call reads the override of a pattern.
function Waits.change(it, _, field)
  if string.find(field, "^override ") and Config.is_pattern(field) then Check.flag(it, "has_patterns") end
end

function Waits.queue(it, _, field)
  if string.find(field, "^look ") then return Check.flag(it, "looks_again") end
  local limits, queue = it.ctx.prefix .. Keys.QUEUE_LIMITS, string.match(field, "^queue (.*)$")
  local text = queue and redis.call("HGET", limits, field)
  if not text then return end
  local key = Config.read_queue(text).key
  if Config.queue_of_key(it.ctx, key) == queue then return end
  Check.found(it, "queue_limit_lost", "queue_limits", field, function() redis.call("HSET", limits, "key " .. key, queue) end)
end
