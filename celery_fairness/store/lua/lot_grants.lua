--[[
  lot_grants: the starts of a key that its home has counted, and the lots that it has lent to partitions (ADR 32).

  The ledger `grants KEY` (grants.lua) has these fields too:
  - texts, ideal  the starts that partitions have reported, as a window has them (rates.lua)
  - turn          the least turn when a lot was lent last. A partition that comes begins with it
  - lots          by `PARTITION RUN`, the lot of a server of a partition

  A lot has these fields:
  - number                 of its last request
  - units, starts, life_ms  of the lot, and how long it lives
  - at, given_at           when its starts count unless they are reported before, and when it was lent
  - tasks, need, tenants   the tasks that wait there, the units of the first one, and the tenants
  - turn                   the units that it was lent, for each tenant. The least turn is next
  - opens_at, comes_at     when its next turn comes, and when a worker comes again
  - known_until            until when its tasks count without a further request

  Rules, each of which the search in tests/reference/lots.py leaves out:
  1. A lot counts as if its starts came at its end and a margin, which is as long as its life.
  2. A report counts the starts of a lot at its own time, because they came before.
  3. A home whose memory another server wrote lends nothing until it has counted the windows of all partitions.
]]

-- A lot lives for a twentieth of the period, in this range.
local LIFE_PART, SHORTEST_MS, LONGEST_MS = 1 / 20, 100, 1000
-- A lot of a throttle has the starts of this time. Each change of hands costs the time of some messages.
local PIECE_MS = 300
-- A worker comes again after this time at the latest, and not before.
local AGAIN_MS, SOONEST_MS = 5000, 5
-- The tasks of a partition count without a further request for so long, or for so long after a worker was to come again.
local KNOWN_MS = 1500
-- A late request finds the number of the last one for this time.
local KEPT_MS = 60000

-- Returns how long a lot of one start lives.
local function life_of(limit)
  local shortest = limit.throttle ~= "" and Rates.interval_of(limit.throttle) or math.huge
  for _, period_ms in Rates.windows_of(limit.rate) do shortest = math.min(shortest, period_ms) end
  return math.ceil(math.max(SHORTEST_MS, math.min(shortest * LIFE_PART, LONGEST_MS)))
end

-- Returns the window of a ledger, as Rates.read returns it.
local function window_of(ledger)
  local window = {texts = {}, ideal = ledger.ideal}
  for period, text in pairs(ledger.texts or {}) do
    local period_ms = tonumber(period)
    window.texts[period_ms], window.longest = text, math.max(window.longest or 0, period_ms)
  end
  return window
end

-- Writes the texts of a window into a ledger.
local function keep_texts(ledger, texts)
  ledger.texts = {}
  for period_ms, text in pairs(texts) do
    if text and text ~= "" then ledger.texts[Rates.int_text(period_ms)] = text end
  end
end

-- Counts units that started at a logical time at the latest.
local function count(ledger, limit, at, units, starts)
  if units <= 0 and starts <= 0 then return end
  local window, texts = window_of(ledger), {}
  for period_ms, most in pairs(Rates.counted_windows(limit)) do
    local text = Rates.text_for(window, period_ms) or ""
    texts[period_ms] = units > 0 and Rates.add_start(text, most, period_ms, at, units) or text
  end
  -- A longer period may come back with the next override.
  if window.longest and not texts[window.longest] then
    local text = window.texts[window.longest]
    texts[window.longest] = units > 0 and Rates.add_start(text, nil, window.longest, at, units) or text
  end
  keep_texts(ledger, texts)
  if starts > 0 then ledger.ideal = math.max(ledger.ideal or at, at) end
end

-- Takes units out of the entry of a start of this age. That is the newest entry of this age or more, and otherwise the oldest.
-- Several starts may have one entry, so an older entry may have a part of the units. A start that has left the window has no
-- entry, and the oldest one is of other starts.
local function take_out(ledger, limit, age, units, starts, rules)
  local latest = -math.huge
  for period, text in pairs(ledger.texts or {}) do
    local entries, place, left = Rates.entries_of(text), 1, age <= tonumber(period) and units or 0
    for index = 1, #entries do
      if entries[index][1] <= rules.logical - age then place = index end
    end
    while place >= 1 and left > 0 do
      local part = math.min(left, entries[place][2])
      entries[place][2], left, place = entries[place][2] - part, left - part, place - 1
    end
    local kept = {}
    for index = 1, #entries do
      if entries[index][2] > 0 then kept[#kept + 1] = entries[index] end
    end
    ledger.texts[period] = Rates.text_of(kept)
    if #kept > 0 then latest = math.max(latest, kept[#kept][1]) end
  end
  if starts > 0 and ledger.ideal and limit.throttle ~= "" then
    ledger.ideal = math.max(ledger.ideal - starts * Rates.interval_of(limit.throttle), latest)
  end
end

-- Notes the request of a holder: what its last lot has started, and what waits there. A request that comes again changes
-- nothing. A count (`is_counted`) has the starts already.
function LotGrants.note(ledger, holder, report, limit, is_counted, rules)
  local its, was = report.lot, ledger.lots[holder]
  if was and was.number >= report.number then return end
  if its.number and not is_counted and not (was and its.number < was.number) then
    -- Without `was`, or with an older one, this home has forgotten the lot.
    count(ledger, limit, rules.logical, its.units, its.starts)
  end
  if was and not is_counted and its.number and its.number > was.number then count(ledger, limit, math.min(was.at, rules.logical), was.units, was.starts) end
  for _, each in ipairs(its.corrections or {}) do
    local is_new = not is_counted and not (was and was.number > each[1])
    if is_new then count(ledger, limit, rules.logical, each[3], each[4]) end
    -- A home that has forgotten the partition may lack the start too.
    if is_new and was then take_out(ledger, limit, each[2], -each[3], -each[4], rules) end
  end
  for _, other in pairs(ledger.lots) do
    if other.partition == report.partition then other.tasks = 0 end
  end
  local turn = was and was.turn or 0
  local used = was and its.number == was.number and its.units or 0
  if was then turn = turn - math.max(0, was.units - used) / was.tenants end
  ledger.lots[holder] = {partition = report.partition, number = report.number, units = 0, starts = 0, at = 0, given_at = 0,
    life_ms = 0, tasks = its.tasks, need = its.need, tenants = report.tenants, turn = math.max(turn, ledger.turn or 0),
    known_until = rules.logical + KNOWN_MS, comes_at = rules.logical + AGAIN_MS, opens_at = rules.logical + AGAIN_MS}
end

-- Counts the windows that all partitions report. The home may have starts that a partition has lost, so the count with more
-- starts holds.
function LotGrants.recount(ledger, reports, limit, rules)
  local entries = {}
  for _, report in ipairs(reports) do
    for _, each in ipairs(report.lot and report.lot.window or {}) do entries[#entries + 1] = {rules.logical - each[1], each[2]} end
  end
  table.sort(entries, function(one, other) return one[1] < other[1] end)
  local window, texts = window_of(ledger), {}
  for period_ms, most in pairs(Rates.counted_windows(limit)) do
    local text = ""
    for index = 1, #entries do
      local at, units = unpack(entries[index])
      if at + period_ms + 1 > rules.logical then text = Rates.add_start(text, most, period_ms, at, units) end
    end
    local known = {texts = {[period_ms] = Rates.text_for(window, period_ms)}, longest = period_ms}
    local new = {texts = {[period_ms] = text}, longest = period_ms}
    local before, now = Rates.count_in(known, most, period_ms, rules.logical), Rates.count_in(new, most, period_ms, rules.logical)
    texts[period_ms] = now >= before and text or known.texts[period_ms]
  end
  keep_texts(ledger, texts)
  if #entries > 0 then ledger.ideal = math.max(ledger.ideal or 0, entries[#entries][1]) end
  for _, lot in pairs(ledger.lots) do lot.units, lot.starts = 0, 0 end
end

-- Returns how many units are free now. The lots that are lent are counted beside the text of a period. A text to which a start
-- with a later time is added loses the starts that leave the window before that time.
local function free_units(ledger, window, limit, rules)
  local free = math.huge
  for most, period_ms in Rates.windows_of(limit.rate) do
    local left = most - Rates.count_in(window, most, period_ms, rules.logical)
    for _, lot in pairs(ledger.lots) do
      if lot.units > 0 and lot.at + period_ms + 1 > rules.logical then left = left - lot.units end
    end
    free = math.min(free, left)
  end
  return free
end

-- Returns the time until `units` are free, if all lots that are lent are reported now. Before them `starts` of a throttle begin.
local function wait_ms(ledger, window, limit, units, starts, rules)
  local wait = 0
  for most, period_ms in Rates.windows_of(limit.rate) do
    local text = Rates.text_for(window, period_ms) or ""
    for _, lot in pairs(ledger.lots) do
      if lot.units > 0 then text = Rates.add_start(text, most, period_ms, lot.given_at, lot.units) end
    end
    local rounds = math.max(0, math.ceil(units / most) - 1)
    local last = Rates.rate_wait_ms(text, most, period_ms, rules.logical, units - rounds * most) or period_ms
    wait = math.max(wait, rounds * period_ms + last)
  end
  if limit.throttle ~= "" then
    local interval, last = Rates.interval_of(limit.throttle), ledger.ideal or 0
    for _, lot in pairs(ledger.lots) do
      if lot.starts > 0 then last = math.max(last, lot.given_at + (lot.starts - 1) * interval) end
    end
    wait = math.max(wait, last + (starts + 1) * interval - rules.logical)
  end
  return wait
end

-- Returns whether the throttle of a limit lets a lot begin now.
local function is_line_free(ledger, limit, rules)
  if limit.throttle == "" then return true end
  local last = ledger.ideal or 0
  for _, lot in pairs(ledger.lots) do
    if lot.starts > 0 then last = math.max(last, lot.at) end
  end
  return last + Rates.interval_of(limit.throttle) <= rules.logical
end

-- Returns whether a partition gets a lot of `left` units now. A lot for a whole life costs the same messages as one of a unit. So
-- a partition waits for it, but only for a life. `before` are the units of the partitions whose turn is earlier.
local function may_lend(ledger, window, limit, its, left, before, rules)
  if not is_line_free(ledger, limit, rules) then return false end
  if left >= its.least then return true end
  return left >= its.need and wait_ms(ledger, window, limit, before + its.least, 0, rules) > life_of(limit)
end

-- Returns the lots of the partitions in which tasks wait, the one with the least turn first. The field `piece` becomes the units
-- that each gets next. They are its share of the free units, at least those of one life, and enough for its first task.
local function in_turn(ledger, limit, free, rules)
  local order, a_life, life = {}, math.huge, life_of(limit)
  for _, lot in pairs(ledger.lots) do
    if lot.tasks > 0 and rules.logical < lot.known_until then
      lot.demand = lot.tasks * lot.need
      order[#order + 1] = lot
    end
  end
  for most, period_ms in Rates.windows_of(limit.rate) do a_life = math.min(a_life, most * life / period_ms) end
  if a_life == math.huge then a_life = 1 end
  local quotas = Grants.quotas(math.max(0, free), order)
  for index, lot in ipairs(order) do
    lot.least = math.max(lot.need, math.min(lot.demand, math.floor(a_life)))
    lot.piece = math.max(lot.least, math.min(lot.demand, math.floor(quotas[index])))
  end
  table.sort(order, function(one, other)
    if one.turn ~= other.turn then return one.turn < other.turn end
    return one.partition < other.partition
  end)
  return order
end

-- Lends a lot to the holder of a request, if it is its turn. Otherwise notes when its turn comes. `room` is how many tasks have
-- the permits to start. Returns a partition to which the caller goes next, or nil.
function LotGrants.lend(ledger, lot, limit, room, rules)
  if limit.rate == "" and limit.throttle == "" then return nil end
  lot.tasks = math.min(lot.tasks, room)
  local window = window_of(ledger)
  local free = free_units(ledger, window, limit, rules)
  local order, interval = in_turn(ledger, limit, free, rules), Rates.interval_of(limit.throttle)
  local starts_each = limit.throttle ~= "" and math.max(1, math.floor(PIECE_MS / interval)) or math.huge
  local left, before, starts = free, 0, 0
  for _, each in ipairs(order) do
    if each == lot then break end
    left, before, starts = left - each.piece, before + each.piece, starts + math.min(each.tasks, starts_each)
  end
  local is_next = lot.tasks > 0 and (limit.throttle == "" or order[1] == lot)
  if is_next and may_lend(ledger, window, limit, lot, left, before, rules) then
    lot.units = math.min(lot.piece, math.floor(left))
    lot.starts = math.min(lot.units, starts_each)
    -- A throttle counts starts, and its task may take several units.
    if limit.rate == "" then lot.units = lot.starts end
    lot.life_ms = life_of(limit) + math.ceil(limit.throttle ~= "" and (lot.starts - 1) * interval or 0)
    lot.given_at, lot.at = rules.logical, rules.logical + lot.life_ms + life_of(limit)
    -- A partition that comes later begins with the least turn of those that wait. With a larger one it would wait too long.
    ledger.turn = math.max(ledger.turn or 0, order[1].turn)
    lot.turn = lot.turn + lot.units / lot.tenants
    free = free - lot.units
  elseif lot.tasks > 0 then
    local wait = wait_ms(ledger, window, limit, before + lot.piece, starts, rules)
    lot.opens_at = rules.logical + math.ceil(wait)
    lot.comes_at = rules.logical + math.max(SOONEST_MS, math.min(math.ceil(wait), AGAIN_MS))
    lot.known_until = lot.comes_at + KNOWN_MS
  end
  left, before = free, 0
  for _, each in ipairs(order) do
    -- A partition that has a lot reports it before it gets another one.
    if each ~= lot and each.units == 0 then
      -- An answer may have named a later time.
      local gets = rules.logical + SOONEST_MS < each.comes_at and may_lend(ledger, window, limit, each, left, before, rules)
      if gets then each.comes_at = rules.logical end
      return gets and each.partition or nil
    end
    if each ~= lot then left, before = left - each.piece, before + each.piece end
  end
end

-- Adds the lot to the answer to a request. If there is none, adds when the turn of the partition comes (opens_ms), and after
-- which time the caller comes again (again_ms).
function LotGrants.answer(answer, lot, rules)
  if lot.units > 0 then
    answer.lot = {units = lot.units, starts = lot.starts, life_ms = lot.life_ms}
  elseif lot.tasks > 0 then
    answer.opens_ms = math.max(0, lot.opens_at - rules.logical)
    answer.again_ms = math.max(SOONEST_MS, math.min(lot.comes_at - rules.logical, AGAIN_MS))
  end
end

-- Removes from a ledger what counts no more.
function LotGrants.sweep(ledger, rules)
  ledger.lots, ledger.texts = ledger.lots or {}, ledger.texts or {}
  local longest = 0
  for period, text in pairs(ledger.texts) do
    local period_ms = tonumber(period)
    longest = math.max(longest, period_ms)
    if tonumber(string.match(text, "^%d+ (%d+)")) + period_ms + 1 <= rules.logical then ledger.texts[period] = nil end
  end
  for holder, lot in pairs(ledger.lots) do
    local until_ms = math.max(lot.known_until + KEPT_MS, lot.units > 0 and lot.at + (ledger.longest or longest) + 1 or 0)
    if until_ms <= rules.logical then ledger.lots[holder] = nil end
  end
end

-- Returns the logical time until which a ledger has something of lots, or 0.
function LotGrants.last(ledger)
  local last = 0
  for _, lot in pairs(ledger.lots) do
    lot.demand, lot.least, lot.piece = nil, nil, nil
    last = math.max(last, lot.known_until + KEPT_MS, lot.units > 0 and lot.at + (ledger.longest or 0) + 1 or 0)
  end
  for period, text in pairs(ledger.texts) do
    last = math.max(last, tonumber(string.match(text, "^%d+ (%d+)")) + tonumber(period) + 1)
  end
  return last
end
