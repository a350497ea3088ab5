--[[
  saving: keys save slots and units for a task that takes several.

  Without this, a task that takes 8 of 10 slots would wait for ever behind a stream of tasks that take 1. So if only its
  amounts keep back the first task that waits at a limit, its keys save them. Others see less, until the task starts.

  `virtual_times` holds by `saving KEY` the text `SLOTS UNITS UNTIL KEYS NAME TENANT QUEUE`. The key saves SLOTS of its
  concurrency and UNITS of its rate for the place `NAME QUEUE`: tasks of QUEUE wait there at the limit NAME, and the first of
  them is of the tenant with the key TENANT. A key that saves none of one has 0. KEYS are all that save for it, with commas
  between them. The saving ends at the logical time UNTIL, if the task has not started. UNTIL is 0 while slots gather, because
  no time says when a body ends.

  Rules:
  1. A key saves for one task. It is the first of its place by the virtual time of the key.
  2. No task that the claim could take waits at another place of the key and is due before.
  3. Only the amounts of the task keep it back (limits.lua). Its keys save all of them or none. Otherwise two keys could save
     for two tasks, each of which waits for the other key. If the task takes several slots, each of its limits saves.
     Otherwise its rates save.
  4. The saving ends when the task starts, when its tenant leaves the place, or GRACE_MS after what it takes is free. Then
     others are looked at. So a worker that has died keeps nothing from others.
]]

-- If no worker has started the task within this time, its turn is over. A worker sleeps at most half as long.
local GRACE_MS = 2000
-- A key compares its first task with at most this many other places.
local PLACES_AT_MOST = 8

function Saving.place_of(name, queue)
  return name .. " " .. queue
end

-- Returns what a key saves, or nil. `ends` is nil while slots gather.
function Saving.of(ctx, key)
  local text = redis.call("HGET", ctx.prefix .. Keys.VIRTUAL_TIMES, "saving " .. key)
  if not text then return nil end
  local slots, units, ends, keys, name, tenant, queue = string.match(text, "^(%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (.*)$")
  return {slots = tonumber(slots), units = tonumber(units), ends = ends ~= "0" and tonumber(ends) or nil, keys = keys,
    name = name, tenant = tenant, queue = queue, place = Saving.place_of(name, queue)}
end

local function write(ctx, key, saved)
  redis.call("HSET", ctx.prefix .. Keys.VIRTUAL_TIMES, "saving " .. key, Rates.int_text(saved.slots) .. " "
    .. Rates.int_text(saved.units) .. " " .. Rates.int_text(saved.ends or 0) .. " " .. saved.keys .. " " .. saved.name .. " "
    .. saved.tenant .. " " .. saved.queue)
end

-- Returns whether a key saves for another place than `place` now. `saved` is as Saving.of returns it.
local function is_for_others(saved, rules, place)
  return saved and saved.place ~= place and not Saving.is_over(saved, rules)
end

function Saving.is_over(saved, rules)
  return saved.ends ~= nil and saved.ends <= rules.logical
end

-- Returns how many "slots" or "units" a key saves for another place than `place`, and for how long. Returns nil if it saves
-- none. While slots gather, the saving may end at any moment, so a rate is looked at again after a second.
function Saving.of_others(ctx, key, rules, place, what)
  if not ctx.several or rules.was_promoted then return nil end
  local saved = Saving.of(ctx, key)
  if not is_for_others(saved, rules, place) or saved[what] == 0 then return nil end
  return saved[what], saved.ends and saved.ends - rules.logical or Backoff.TRY_AGAIN_MS
end

-- Ends what keys save for the task of a saving. Returns these keys.
local function remove(ctx, saved)
  local keys = {}
  for key in string.gmatch(saved.keys, "[^,]+") do
    local its = Saving.of(ctx, key)
    if its and its.place == saved.place and its.tenant == saved.tenant then
      redis.call("HDEL", ctx.prefix .. Keys.VIRTUAL_TIMES, "saving " .. key)
      keys[#keys + 1] = key
    end
  end
  return keys
end

-- What waits at these keys is looked at again, because they save nothing any more. A claim looks at it itself (look_now).
function Saving.look_again(ctx, keys)
  local waiting = Config.check_again(ctx, keys)
  ctx.result.unsaved = ctx.result.unsaved or {}
  for index = 1, #waiting do
    local place = redis.call("LINDEX", ctx.prefix .. Keys.WAITERS .. waiting[index], 0)
    Active.wake_worker(ctx, string.match(place, "^%S+ (.*)$"))
    ctx.result.unsaved[#ctx.result.unsaved + 1] = waiting[index]
  end
end

-- A claim has taken its tasks, and looks at the keys that save nothing any more. Returns whether there are any.
function Saving.look_now(ctx, rules)
  local keys = ctx.result.unsaved or {}
  for index = 1, #keys do
    redis.call("ZREM", ctx.prefix .. Keys.TIMERS, keys[index])
    Wake.check_waiters(ctx, keys[index], rules)
  end
  return #keys > 0
end

-- A tenant leaves a place.
function Saving.left(ctx, name, tenant, queue)
  if not ctx.several then return end
  local saved = Saving.of(ctx, string.match(name, "^[^|]*"))
  if saved and saved.name == name and saved.tenant == tenant and saved.queue == queue then
    Saving.look_again(ctx, remove(ctx, saved))
  end
end

-- A group waits at another place from now on, with all its tenants.
function Saving.group_left(ctx, name, group, queue)
  if not ctx.several then return end
  local saved = Saving.of(ctx, string.match(name, "^[^|]*"))
  if saved and saved.name == name and saved.queue == queue
    and redis.call("ZSCORE", ctx.prefix .. Keys.GROUP .. group .. " " .. queue, saved.tenant) then
    Saving.look_again(ctx, remove(ctx, saved))
  end
end

-- The first task of a place starts. If it takes as much as is saved, the saving ends. Otherwise it is before the task for
-- which its key saves. Returns the keys that save nothing any more.
function Saving.started(ctx, turn)
  local saved, slots, units = ctx.several and turn.group and Saving.of(ctx, turn.limit_key), 1, 1
  if not saved or saved.place ~= Saving.place_of(turn.name, turn.queue) then return {} end
  for spec in string.gmatch(turn.specs, "[^,]+") do
    local limit = Limits.read_limit(spec)
    if limit.key == turn.limit_key then
      slots, units = math.max(slots, limit.slots or 1), math.max(units, limit.units or 1)
    end
  end
  return slots >= saved.slots and units >= saved.units and remove(ctx, saved) or {}
end

-- Returns when the lane of a turn is due at a place, if it is the first there, or nil.
local function first_tag(ctx, place, turn)
  local group, tag = unpack(redis.call("ZRANGE", ctx.prefix .. Keys.GROUPS_AT .. place, 0, 0, "WITHSCORES"))
  local key = group and redis.call("ZRANGE", ctx.prefix .. Keys.GROUP .. group .. " " .. turn.queue, 0, 0)[1]
  return key == turn.key and Lanes.first_lane(ctx, turn.queue, key, group) == turn.lane and tonumber(tag) or nil
end

-- Returns whether a task that is due before `tag` waits at another place of a key, in one of the queues of a claim. If a
-- queue's own limit is closed, no claim takes its tasks.
local function is_other_first(ctx, key, place, tag, rules, queues)
  local places = redis.call("LRANGE", ctx.prefix .. Keys.WAITERS .. key, 0, PLACES_AT_MOST - 1)
  for index = 1, #places do
    local queue = string.match(places[index], "^%S+ (.*)$")
    for each = 1, places[index] ~= place and #queues or 0 do
      if queues[each] == queue then
        local row = Config.queue_row(ctx, queue)
        local best = redis.call("ZRANGE", ctx.prefix .. Keys.GROUPS_AT .. places[index], 0, 0, "WITHSCORES")[2]
        if best and tonumber(best) < tag and not (row and Limits.check(ctx, row.spec, rules)) then return true end
      end
    end
  end
  return false
end

-- Only its amounts keep a task back. Returns the limits whose keys may save for it, and the time until all of its limits are
-- open, which is math.huge while slots gather. Also returns whether the task takes several slots. Returns nil if its tenant
-- may start nothing.
local function to_save(ctx, turn, rules, place)
  local limits, wait, found, takes_slots = Rates.of_one_key(Limits.limits_now(ctx, turn.specs, rules)), 0, {}, false
  for index = 1, #limits do takes_slots = takes_slots or limits[index].slots ~= nil end
  for index = 1, #limits do
    local limit = limits[index]
    wait = math.max(wait, (Limits.wait_ms(ctx, limit, rules, place)))
    -- A key that is open beside what it saves for another task goes on to save for that one.
    local saves = limit.rate ~= "" or takes_slots and limit.concurrency
    if saves and not is_for_others(ctx.several and Saving.of(ctx, limit.key), rules, place) then found[#found + 1] = limit end
  end
  if not Tenants.check(ctx, turn.key, rules, turn.queue).open then return nil end
  return found, wait, takes_slots
end

-- A limit rejects the first task of the lane of a turn, and the task waits there. Its keys begin to save for it, or go on,
-- or end that. `turn` has the limits of the task (specs) besides. `queues` are those of the claim.
function Saving.note_rejection(ctx, turn, limit, rules, queues)
  if not limit.units and not limit.slots and not ctx.several then return end
  local place = Saving.place_of(limit.name, turn.queue)
  local saved = ctx.several and Saving.of(ctx, limit.key)
  if is_for_others(saved, rules, place) then return end
  local tag = first_tag(ctx, place, turn)
  if not tag then return end
  local limits, wait, takes_slots
  if limit.by_amount then limits, wait, takes_slots = to_save(ctx, turn, rules, place) end
  -- The task may start at its place, before the one for which the key saves.
  if wait == 0 then return end
  local gone = saved and remove(ctx, saved) or {}
  if not limits or is_other_first(ctx, limit.key, place, tag, rules, queues) then return Saving.look_again(ctx, gone) end
  Clock.note_several(ctx)
  if takes_slots then Clock.note_slots(ctx) end
  local keys, ends = {}, nil
  for index = 1, #limits do keys[index] = limits[index].key end
  if wait < math.huge then ends = math.ceil(rules.logical + wait + GRACE_MS) end
  for index = 1, #limits do
    local its = limits[index]
    write(ctx, its.key, {slots = takes_slots and its.concurrency and (its.slots or 1) or 0,
      units = its.rate ~= "" and (its.units or 1) or 0, ends = ends, keys = table.concat(keys, ","), name = limit.name,
      tenant = turn.key, queue = turn.queue})
  end
end

-- Returns a limit as the task has it for which the key saves, if it waits at a place. Otherwise returns the limit itself.
function Saving.limit_at(saved, limit, place)
  if not saved or saved.place ~= place then return limit end
  local its = {}
  for field, value in pairs(limit) do its[field] = value end
  its.slots, its.units = saved.slots > 1 and saved.slots or nil, saved.units > 1 and saved.units or nil
  return its
end

-- What a task takes of the key at which it waits is free now. A worker has the time until the saving ends to start it.
local function set_end(ctx, saved, rules)
  saved.ends = rules.logical + GRACE_MS
  for key in string.gmatch(saved.keys, "[^,]+") do
    local its = Saving.of(ctx, key)
    if its and its.place == saved.place and its.tenant == saved.tenant then
      its.ends = saved.ends
      write(ctx, key, its)
      redis.call("ZADD", ctx.prefix .. Keys.TIMERS, "LT", Rates.int_text(saved.ends), key)
    end
  end
end

-- Returns what a key saves when its waiting limits are looked at. A saving that is over ends.
function Saving.look(ctx, key, rules)
  local saved = ctx.several and Saving.of(ctx, key)
  if not saved then return nil end
  if Saving.is_over(saved, rules) then
    Saving.look_again(ctx, remove(ctx, saved))
    return nil
  end
  -- This look may have come before the end, and has taken the key out of `timers`.
  if saved.ends then redis.call("ZADD", ctx.prefix .. Keys.TIMERS, "LT", Rates.int_text(saved.ends), key) end
  if not saved.ends and string.match(saved.name, "^[^|]*") == key then
    local limit = Saving.limit_at(saved, Limits.limit_now(ctx, saved.name, rules), saved.place)
    if Config.stopped_ms(ctx, limit, rules) > 0 then
      -- Nobody knows when the task may start, so its other keys save nothing for it.
      Saving.look_again(ctx, remove(ctx, saved))
      return nil
    end
    if Limits.wait_ms(ctx, limit, rules, saved.place) == 0 then set_end(ctx, saved, rules) end
  end
  return saved
end
