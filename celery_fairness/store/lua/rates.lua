--[[
  rates: the starts under a key, in one text for each period of its rates.

  `window:KEY` has by PERIOD_MS the text `SUM AT UNITS|AT:UNITS,…`. An entry counts UNITS, and AT is the logical time of
  the last start that it has. A start counts 1, or the units that its task takes. The newest entry stands before the bar, and the others follow, the oldest first. SUM is that of
  all entries.

  Up to a rate of EXACT, each start has an entry. Above, the starts within one part of the period share an entry, and
  leave the window with the last of them. So no window ever has more units than the rate, and a text has at most
  PARTS + 2 entries. If no call enforces the rate, it has up to EXACT more. A task that takes more than the rate counts in
  full, and so does what a body reports (correct).

  A period that is new for a key begins with the entries of the longest known period. So an override still counts what
  started before it.

  `left` is the text `LEFT UNTIL AT`: the API has reported at AT that LEFT more starts are free until UNTIL (reports.lua).
]]

local EXACT, PARTS = 100, 100
-- The server remembers the starts of a key for at least this time.
local REMEMBERED_MS = 60000
-- One command names at most 1000 keys, because a call passes a limited number of arguments.
Rates.KEYS_AT_ONCE = 1000
-- One call forgets at most 256 keys.
local IDLE_AT_MOST = 256

function Rates.int_text(number)
  return string.format("%.0f", number)
end

function Rates.windows_of(text)
  local next_window = string.gmatch(text, "(%d+)/(%d+)")
  return function()
    local starts, period_ms = next_window()
    return tonumber(starts), tonumber(period_ms)
  end
end

-- Returns what `window:KEY` has:
-- - ideal: the time of the last start by the throttle, nil if the key has no window
-- - texts: the text by period
-- - longest: the longest period, nil if there is none
-- - left: what the API has reported (reports.lua), nil without a report
-- A function that gives no start back within its call may keep it in `ctx.memo.windows`.
function Rates.read(ctx, key)
  local known = ctx.memo.windows
  if known and known[key] then return known[key] end
  local flat, window = redis.call("HGETALL", ctx.prefix .. Keys.WINDOW .. key), {texts = {}}
  for index = 1, #flat, 2 do
    local period_ms = tonumber(flat[index])
    if period_ms then
      window.texts[period_ms], window.longest = flat[index + 1], math.max(window.longest or 0, period_ms)
    elseif flat[index] == "ideal" then
      window.ideal = tonumber(flat[index + 1])
    elseif flat[index] == "left" then
      window.left = Reports.read(flat[index + 1])
    end
  end
  if known then known[key] = window end
  return window
end

-- Returns the text of a period, or nil if the key has no window.
function Rates.text_for(window, period_ms)
  return window.texts[period_ms] or window.texts[window.longest]
end

-- Returns the sum of the entries of a text that are in the window now, and the time and the units of the newest entry.
-- Also returns the place in the text at which the others begin.
local function entries_now(text, period_ms, logical)
  local sum, at, units, from = string.match(text or "", "^(%d+) (%d+) (%d+)|()")
  -- Two starts may be up to 1 ms nearer than their whole milliseconds show.
  if not sum or at + period_ms + 1 <= logical then return 0 end
  while true do
    local older_at, gone, next_from = string.match(text, "^(%d+):(%d+),()", from)
    if not older_at or older_at + period_ms + 1 > logical then break end
    sum, from = sum - gone, next_from
  end
  return tonumber(sum), tonumber(at), tonumber(units), from
end

-- Returns the time until `units` more fit into a window of at most `most` units. Returns nil if they never fit.
function Rates.rate_wait_ms(text, most, period_ms, logical, units)
  if units > most then return nil end
  local sum, at, _, from = entries_now(text, period_ms, logical)
  local over = sum + units - most
  if over <= 0 then return 0 end
  for older_at, units in string.gmatch(string.sub(text, from), "(%d+):(%d+),") do
    over = over - units
    if over <= 0 then return older_at + period_ms + 1 - logical end
  end
  return at + period_ms + 1 - logical
end

-- Returns how many units a window of `period_ms` has that ends now. Also returns the time until it has fewer, or fewer
-- than `starts`.
function Rates.count_in(window, starts, period_ms, logical)
  local text = Rates.text_for(window, period_ms)
  local sum = entries_now(text, period_ms, logical)
  if sum == 0 then return 0, 0 end
  return sum, Rates.rate_wait_ms(text, math.min(starts, sum), period_ms, logical, 1)
end

-- Returns the entries of a text as {AT, UNITS}, the oldest first.
function Rates.entries_of(text)
  local at, units, older = string.match(text, "^%d+ (%d+) (%d+)|(.*)$")
  local entries = {}
  for its_at, its_units in string.gmatch(at and older .. at .. ":" .. units .. "," or "", "(%d+):(%d+),") do
    entries[#entries + 1] = {tonumber(its_at), tonumber(its_units)}
  end
  return entries
end

-- Returns the text of entries, or nil if there are none.
function Rates.text_of(entries)
  if #entries == 0 then return nil end
  local older, sum, newest = {}, 0, entries[#entries]
  for index = 1, #entries do
    local at, units = entries[index][1], entries[index][2]
    sum = sum + units
    if index < #entries then older[index] = Rates.int_text(at) .. ":" .. units .. "," end
  end
  return sum .. " " .. Rates.int_text(newest[1]) .. " " .. newest[2] .. "|" .. table.concat(older)
end

-- Returns the entries of a period that are in the window now.
function Rates.entries_in(window, period_ms, logical)
  local entries, found = Rates.entries_of(Rates.text_for(window, period_ms) or ""), {}
  for index = 1, #entries do
    if entries[index][1] + period_ms + 1 > logical then found[#found + 1] = entries[index] end
  end
  return found
end

-- Returns a text with the sum of its entries, or nil if it has none.
function Rates.add_up(text)
  return Rates.text_of(Rates.entries_of(text))
end

local function is_same_part(one, other, period_ms)
  return math.floor(one * PARTS / period_ms) == math.floor(other * PARTS / period_ms)
end

-- Returns a text with a start before its newest entry. The clock of the server may go back, and the logical time with it
-- (clock.lua).
local function add_earlier_start(text, logical, more)
  local entries = Rates.entries_of(text)
  local place = #entries
  while place > 1 and entries[place - 1][1] > logical do place = place - 1 end
  table.insert(entries, place, {logical, more})
  return Rates.text_of(entries)
end

-- Returns a text with one more start, which counts `more` units. `starts` is the rate, nil if it is not known.
function Rates.add_start(text, starts, period_ms, logical, more)
  local sum, at, units, from = entries_now(text, period_ms, logical)
  if at and at > logical then return add_earlier_start(text, logical, more) end
  if not at then return more .. " " .. Rates.int_text(logical) .. " " .. more .. "|" end
  local begin, older = sum + more .. " " .. Rates.int_text(logical) .. " ", string.sub(text, from)
  if (sum >= EXACT or starts and starts > EXACT) and is_same_part(at, logical, period_ms) then
    return begin .. units + more .. "|" .. older
  end
  return begin .. more .. "|" .. older .. Rates.int_text(at) .. ":" .. units .. ","
end

-- Adds units to the entry that counts a start, or takes them out of it if `more` is negative. Starts of one time may have
-- an entry each, and it does not matter which of them changes. Returns the text, and whether an entry counts the start. An
-- entry without units stays if `stays`. The text is nil if no entry is left.
local function change_start(text, starts, period_ms, start, more, stays)
  local entries, left, found = Rates.entries_of(text), {}, nil
  for index = 1, #entries do
    local at, units = entries[index][1], entries[index][2]
    local is_its = at == start
    if found == nil and at >= start then
      local is_shared = units > 1 or starts and starts > EXACT
      is_its = is_its or is_shared and is_same_part(at, start, period_ms)
      found = is_its or false
    end
    if is_its and more ~= 0 then
      local changed = math.max(0, units + more)
      units, more = changed, more - (changed - units)
    end
    if units > 0 or stays then left[#left + 1] = {at, units} end
  end
  return Rates.text_of(left), found
end

function Rates.interval_of(throttle)
  local starts, period_ms = string.match(throttle, "^(%d+)/(%d+)")
  return starts and tonumber(period_ms) / tonumber(starts) or 0
end

-- Joins the limits of each key to one limit, which has the stricter of each number.
function Rates.of_one_key(limits)
  local found, places = {}, {}
  for index = 1, #limits do
    local limit = limits[index]
    local place = places[limit.key]
    if place then
      -- The caller may read the limits themselves again, so a copy changes.
      local one, both = found[place], {}
      for field, value in pairs(one) do both[field] = value end
      both.version = one.version or limit.version
      Numbers.tighten(both, limit)
      found[place] = both
    else
      found[#found + 1] = limit
      places[limit.key] = #found
    end
  end
  return found
end

-- Returns the rate by period of each window that a limit counts. If two limits of a key have the same period, the
-- smaller rate counts. To give a start back, a throttle needs the time of the start before it. So it counts the starts
-- of at most its last EXACT intervals, if no rate has an entry for each of them.
function Rates.counted_windows(limit)
  local counted, starts, period_ms = {}, Rates.windows_of(limit.throttle)()
  local last = math.min(starts or 0, EXACT)
  local throttle_ms = starts and math.ceil(period_ms * last / starts)
  for rate, its_ms in Rates.windows_of(limit.rate) do
    counted[its_ms] = math.min(counted[its_ms] or rate, rate)
    if throttle_ms and rate <= EXACT and its_ms >= throttle_ms then throttle_ms = nil end
  end
  if throttle_ms then counted[throttle_ms] = math.min(counted[throttle_ms] or last, last) end
  return counted
end

-- Writes a start into the windows of a key.
function Rates.count_start(ctx, limit, rules)
  local window, logical = Rates.read(ctx, limit.key), rules.logical
  Reports.take(ctx, limit.key, window, rules)
  if not window.ideal and limit.rate == "" and limit.throttle == "" then return end
  local next_ideal = logical
  for starts, period_ms in Rates.windows_of(limit.throttle) do
    local interval = period_ms / starts
    next_ideal = math.max((window.ideal or 0) + interval, logical - math.max(1, interval / 10))
    -- If nothing is enforced, many tasks start at once, and they leave no debt.
    next_ideal = math.min(logical, next_ideal)
  end
  local counted, texts, longest = Rates.counted_windows(limit), window.texts, window.longest or 0
  for period_ms in pairs(counted) do
    texts[period_ms], longest = Rates.text_for(window, period_ms) or "", math.max(longest, period_ms)
  end
  window.ideal, window.longest = next_ideal, longest
  local fields, gone = {"ideal", string.format("%.17g", next_ideal)}, {}
  -- The field `asked` shows people the numbers by which a call checked the start. Those of a tier are known without it.
  if not limit.of_tier then fields[3], fields[4] = "asked", Numbers.write(limit, AMOUNTS) end
  for period_ms, text in pairs(texts) do
    -- A limit without a rate may have the key of one that has a rate.
    if counted[period_ms] or limit.rate == "" or period_ms == longest then
      texts[period_ms] = Rates.add_start(text, counted[period_ms], period_ms, logical, limit.units or 1)
      fields[#fields + 1] = Rates.int_text(period_ms)
      fields[#fields + 1] = texts[period_ms]
    else
      texts[period_ms] = nil
      gone[#gone + 1] = Rates.int_text(period_ms)
    end
  end
  local window_key = ctx.prefix .. Keys.WINDOW .. limit.key
  redis.call("HSET", window_key, unpack(fields))
  if #gone > 0 then redis.call("HDEL", window_key, unpack(gone)) end
  Rates.keep(ctx, limit.key, window, logical)
end

-- Keeps the window of a key while anything in it counts.
function Rates.keep(ctx, key, window, logical)
  local until_ms = logical + math.max(REMEMBERED_MS, window.longest or 0)
  redis.call("ZADD", ctx.prefix .. Keys.KEY_EXPIRY, math.max(until_ms, window.left and window.left.until_ms or 0), key)
end

-- Keeps the keys of limits known for a while after their leases have ended.
function Rates.stay_known(ctx, keys, logical)
  for first = 1, #keys, Rates.KEYS_AT_ONCE do
    local some, known = {unpack(keys, first, math.min(#keys, first + Rates.KEYS_AT_ONCE - 1))}, {}
    for index = 1, #some do
      known[2 * index - 1] = logical + REMEMBERED_MS
      known[2 * index] = " " .. some[index]
    end
    redis.call("ZADD", ctx.prefix .. Keys.KEY_EXPIRY, unpack(known))
  end
end

-- Forgets keys that nothing has used for long, and their starts. Returns whether there may be more.
function Rates.forget_idle(ctx, logical)
  local idle = redis.call("ZRANGEBYSCORE", ctx.prefix .. Keys.KEY_EXPIRY, "-inf", logical, "LIMIT", 0, IDLE_AT_MOST)
  if #idle == 0 then return false end
  local windows = {}
  for index = 1, #idle do windows[index] = ctx.prefix .. Keys.WINDOW .. idle[index] end
  redis.call("ZREM", ctx.prefix .. Keys.KEY_EXPIRY, unpack(idle))
  redis.call("UNLINK", unpack(windows))
  return #idle == IDLE_AT_MOST
end

function Rates.forget(ctx, key)
  redis.call("UNLINK", ctx.prefix .. Keys.WINDOW .. key)
  redis.call("ZREM", ctx.prefix .. Keys.KEY_EXPIRY, key)
end

--[[
  unbegun: a claimed task ended before its body began, and gives back the starts that its claim took.

  The entry that counts such a start counts one less, as if the start had not happened.
]]

-- Gives back the start of a key at a logical time.
function Rates.give_start_back(ctx, limit, start, rules)
  local window, counted, fields, gone = Rates.read(ctx, limit.key), Rates.counted_windows(limit), {}, {}
  Reports.give_back(ctx, limit.key, window, start)
  if Lots.bound(ctx, limit) then Lots.correct(ctx, limit.key, start, -(limit.units or 1), -1, rules) end
  local is_known = false
  for period_ms, text in pairs(window.texts) do
    local left, found = change_start(text, counted[period_ms], period_ms, start, -(limit.units or 1))
    window.texts[period_ms], is_known = left, is_known or found
    if left then
      fields[#fields + 1] = Rates.int_text(period_ms)
      fields[#fields + 1] = left
    else
      gone[#gone + 1] = Rates.int_text(period_ms)
    end
  end
  if not is_known then return end
  if #fields == 0 and not window.left then return Rates.forget(ctx, limit.key) end
  local interval, latest = Rates.interval_of(limit.throttle), -math.huge
  for period_ms, starts in pairs(counted) do
    local text = starts <= EXACT and window.texts[period_ms]
    if text then latest = math.max(latest, tonumber(string.match(text, " (%d+)"))) end
  end
  -- The ideal is not before the time that the start which is now the last one demands.
  local ideal = math.max(window.ideal - interval, latest - math.max(1, interval / 10))
  local window_key = ctx.prefix .. Keys.WINDOW .. limit.key
  if #fields == 0 then
    gone[#gone + 1] = "ideal"
  else
    redis.call("HSET", window_key, "ideal", string.format("%.17g", math.min(window.ideal, ideal)), unpack(fields))
  end
  if #gone > 0 then redis.call("HDEL", window_key, unpack(gone)) end
end

-- Gives back the starts of a claimed task. Its worker reports that the body did not begin, and no worker has
-- reported that it began.
function Rates.give_starts_back(ctx, task, row, rules)
  local at = tonumber(string.match(row.since, "^@(%d+)"))
  if row.state ~= "claimed" or not at then return end
  local specs, of_queue = rules.limited and task.limits or "", rules.limited and Config.queue_row(ctx, task.queue)
  -- A task that was claimed before its queue had a limit has counted no start there.
  if of_queue and string.find("," .. row.keys .. ",", "," .. of_queue.key .. ",", 1, true) then
    specs = Pick.with_queue_limit(ctx, task.queue, task.limits)
  end
  local tenant = rules.paced and Tenants.state_of(ctx, task, rules) or {}
  local limits = Tenants.counting(tenant, Limits.limits_now(ctx, specs, rules))
  for index = 1, #limits do Rates.give_start_back(ctx, limits[index], at, rules) end
end

--[[
  correct: a body reports how many units it has used, in place of the estimate with which it started.
]]

-- A start of a key at a logical time counts `more` units more, or fewer if `more` is negative. If the start has left a
-- window, more units count from now on, because they are used now. Fewer change nothing there.
function Rates.correct(ctx, key, start, more, rules)
  local window, window_key = Rates.read(ctx, key), ctx.prefix .. Keys.WINDOW .. key
  local longest = window.longest
  Lots.correct(ctx, key, start, more, 0, rules)
  for period_ms, text in pairs(window.texts) do
    local new, found = text, false
    if start + period_ms + 1 > rules.logical then
      new, found = change_start(text, nil, period_ms, start, more, true)
    end
    if not found and more > 0 then new = Rates.add_start(text, nil, period_ms, rules.logical, more) end
    redis.call("HSET", window_key, Rates.int_text(period_ms), new)
  end
  if longest and more > 0 then
    redis.call("ZADD", ctx.prefix .. Keys.KEY_EXPIRY, "GT", rules.logical + math.max(REMEMBERED_MS, longest), key)
  end
end
