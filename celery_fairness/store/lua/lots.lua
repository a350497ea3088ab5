--[[
  lots: how many starts a rate or a throttle lets a partition begin, if other partitions have tasks of the key too (ADR 32).

  The rate of such a key holds for all partitions together. Its home counts all starts (lot_grants.lua) and lends a lot to a
  partition: some starts and units, for a short life. A partition starts a task only with a lot. It counts its own starts in
  `window:KEY` besides, so it spaces the starts of a lot by its throttle. The three messages are those of permits.lua.

  `permits KEY` has these fields too:
  - lot          the last lot that came: its number is that of its request. `units` and `starts` are left. `used` and `began` are
                 what it has started. It came at `from`, and ends at the time `till` of the server or the logical time `ends`,
                 whichever comes first
  - units        the units of the last task that found too few
  - turn_at      the logical time of its next turn, by the last answer of the home
  - asked        the numbers that this task found
  - corrections  what a start counts more, or fewer, than a request has reported: {after, at, units, starts}. `after` is
                 the number of that request, and `at` the logical time of the start

  Rules, each of which the search in tests/reference/lots.py leaves out:
  1. A lot lives from the stamp of its request.
  2. A lot starts nothing from the next request on, and each request reports what the last lot has started.
  3. A server has no lot that another server was lent.
]]

-- If the worker that was to come again does not, a claim names the key to another one after this time.
local LATE_MS = 500

-- Returns whether the starts of a limit need a lot. Those of a private key do not, because its tenant is in this partition.
function Lots.bound(ctx, limit)
  return (limit.rate ~= "" or limit.throttle ~= "") and not limit.private and Rings.is_partition(ctx)
end

-- Returns how many units a task counts, at most the rate if `most` is true.
local function units_of(limit, most)
  local units = limit.rate ~= "" and limit.units or 1
  for starts in Rates.windows_of(most and limit.rate or "") do units = math.min(units, starts) end
  return units
end

-- Returns the lot of a partition that may start something now, or nil.
local function valid(its, run, rules)
  local lot = its.lot
  local lives = lot and lot.number == its.number and its.run == run and (its.seen or 0) <= rules.now
    and rules.now < lot.till and rules.logical < lot.ends
  return lives and lot or nil
end

-- Gives a limit what its partition has of the key, if its starts need a lot.
function Lots.set(ctx, limit, rules)
  if not Lots.bound(ctx, limit) then return end
  local its = Permits.read(ctx, limit.key)
  if not Permits.decide(limit, its, rules) then return end
  limit.needs_lot, limit.its = true, its
end

-- Returns what a limit lacks for a task: "rate" or "throttle", that number, and whether only the units of the task are too
-- many. Returns nil if it lacks nothing. `place` is as for Limits.pace_ms.
function Lots.lacking(ctx, limit, rules, place)
  if not limit.needs_lot then return nil end
  local lot = valid(limit.its, Permits.run_of(ctx), rules) or {units = 0, starts = 0}
  local units, saved = units_of(limit, true), Saving.of_others(ctx, limit.key, rules, place, "units")
  if lot.starts >= 1 and lot.units >= units + (saved or 0) then return nil end
  local of_rate = limit.rate ~= "" and limit.rate or limit.throttle
  local by_units = units > 1 and not saved and lot.starts >= 1 and lot.units >= 1
  return limit.rate ~= "" and "rate" or "throttle", Rates.windows_of(of_rate)(), by_units
end

-- A claim has found too small a lot for a task.
function Lots.note_short(ctx, limit, rules)
  if Permits.is_idle(ctx, limit.key) then return end
  local its, units = limit.its, units_of(limit, true)
  local asked = Numbers.write(limit, AMOUNTS)
  local is_early = rules.logical < (its.request_at or 0)
  if is_early and its.units == units and its.asked == asked then return end
  its.units, its.asked = units, asked
  Permits.name_key(ctx, limit.key, its, rules, is_early)
end

-- A limit with too small a lot is looked at again. If its numbers are others than those of the last request, its turn may be
-- much nearer than the home has answered.
function Lots.note_numbers(ctx, limit, rules)
  local its, asked = limit.its, Numbers.write(limit, AMOUNTS)
  if not its.asked or its.asked == asked then return end
  its.asked = asked
  Permits.name_key(ctx, limit.key, its, rules)
end

-- A task of a limit starts. A lot that is used up is reported at once, so that the home counts its starts no later.
function Lots.take(ctx, limit, rules)
  if not limit.needs_lot then return end
  local lot, units = valid(limit.its, Permits.run_of(ctx), rules), units_of(limit)
  -- A worker that enforces nothing starts tasks without a lot. Their starts count for all others.
  if not lot then return Lots.correct(ctx, limit.key, rules.logical, units, 1, rules) end
  lot.units, lot.starts = math.max(0, lot.units - units), math.max(0, lot.starts - 1)
  lot.used, lot.began = lot.used + units, lot.began + 1
  if lot.units >= 1 and lot.starts >= 1 then return Permits.write(ctx, limit.key, limit.its) end
  Permits.name_key(ctx, limit.key, limit.its, rules)
end

-- Returns the logical time of the next request because of lots, or nil.
function Lots.request_time(ctx, its, rules, waits)
  local lot, at = its.lot, nil
  if its.corrections and #its.corrections > 0 then at = its.request_at or 0 end
  if lot then
    -- The home has not confirmed a report of this lot, or none was made.
    local is_over = lot.number ~= its.number or lot.units < 1 or lot.starts < 1 or rules.logical >= lot.ends
    at = math.min(at or math.huge, is_over and (its.request_at or 0) or lot.ends)
  end
  if waits and its.units then
    local has = valid(its, Permits.run_of(ctx), rules)
    if not (has and has.units >= its.units and has.starts >= 1) then at = math.min(at or math.huge, its.request_at or 0) end
  end
  return at
end

-- Returns the entries of the window of a key, {AGE, UNITS}, for a home that counts all partitions.
local function starts_of(ctx, key, rules)
  local window, found = Rates.read(ctx, key), {}
  local entries = window.longest and Rates.entries_in(window, window.longest, rules.logical) or {}
  for index = 1, #entries do found[index] = {rules.logical - entries[index][1], entries[index][2]} end
  return Snapshot.list(found)
end

-- A request is made. Returns what it reports of lots, or nil. `tasks` is how many tasks wait. `counts` is true if a home counts
-- all partitions. A field without a value is left out:
-- - number, units, starts  of the last lot: its number, and what it has started
-- - tasks, need            the tasks that wait, and the units of the first one
-- - corrections            {after, age, units, starts} for each
-- - window                 the starts of the longest period as {age, units}, only in a count
function Lots.report(ctx, key, its, rules, tasks, counts)
  local window = counts and starts_of(ctx, key, rules) or nil
  if not (its.lot or its.units or window) then return nil end
  local lot, corrections = its.lot or {}, {}
  for index, each in ipairs(its.corrections or {}) do
    corrections[index] = {each[1], math.max(0, rules.logical - each[2]), each[3], each[4]}
  end
  return {number = lot.number, units = lot.used, starts = lot.began, tasks = its.units and tasks or 0, need = its.units or 1,
    corrections = Snapshot.list(corrections), window = window}
end

-- The answer to the last request has come, which had this stamp.
function Lots.accept(its, answer, rules, stamp)
  local left, lent = {}, answer.lot
  its.turn_at = answer.opens_ms and rules.logical + answer.opens_ms
  -- The worker comes again by itself. A key with a concurrency may get a permit before.
  if answer.again_ms and not its.most then its.request_at = rules.logical + answer.again_ms + LATE_MS end
  for _, each in ipairs(its.corrections or {}) do
    if each[1] >= its.number then left[#left + 1] = each end
  end
  its.corrections, its.lot = Snapshot.list(left), nil
  if not lent then return end
  its.lot = {number = its.number, units = lent.units, starts = lent.starts, used = 0, began = 0, from = rules.logical,
    till = stamp + lent.life_ms, ends = its.stamped + lent.life_ms}
  -- The next task that finds too few is named at once.
  its.request_at = rules.logical
end

-- Forgets what another server of the partition had.
function Lots.forget(its)
  its.lot, its.corrections = nil, nil
end

-- A start of a key at a logical time counts `units` and `starts` more, or fewer, than it did.
function Lots.correct(ctx, key, start, units, starts, rules)
  if not Rings.is_partition(ctx) then return end
  local its = Permits.read(ctx, key)
  local lot = its.lot
  if not its.units or not its.number then return end
  if lot and lot.number == its.number and start >= lot.from then
    lot.used, lot.began = math.max(0, lot.used + units), math.max(0, lot.began + starts)
    -- The home has lent no more than this.
    lot.units = math.max(0, lot.units - units)
  else
    its.corrections = its.corrections or {}
    table.insert(its.corrections, {its.number, start, units, starts})
  end
  -- The home lends by what it has counted, so it does not wait for the turn of this partition.
  its.request_at = math.min(its.request_at or rules.logical, rules.logical)
  Permits.look_soon(ctx, key, its, rules)
end
