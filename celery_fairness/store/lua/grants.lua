--[[
  grants: the permits of a key as its home has granted them to partitions (ADR 30).

  The home of a key is the partition crc32(key) modulo their number, so the homes of keys are spread. Permits are those of
  permits.lua.

  `virtual_times` of the home has by `grants KEY` a JSON object with these fields:
  - own, since   the newest numbers of the key as a text, and when a partition got them
  - at           the logical time of the last grant
  - counted      the server (Clock.server_id) that has counted the permits of all partitions, and until when it would have been
                 quiet without that
  - count_at     the logical time from which another worker may count
  - entries      by `PARTITION RUN`, what a server of a partition has
  - lots and others  what it counts and lends of a rate (lot_grants.lua)

  An entry has these fields:
  - n, held              its permits, and the slots that it had taken. The larger of them counts
  - ends                 the logical time at which they end here
  - number, added, owed  of its last request, and the answer to it
  - at, added_at         the times of its last request, and of its last new permits
  - visited_at           when a worker was sent to it, or nil after its next request
  - demand, need         the slots that it could use, and those of its first task
  - tenants              the tenants that wait there
  - credit               the permits that it had too few, times seconds, less what others had too few

  Rules, each of which the search in tests/reference/permits.py leaves out:
  1. An entry lasts longer than the permits, by Permits.margin_ms.
  2. The clock is the logical one, which no jump of the server's clock moves far.
  3. A home whose memory another server wrote adds nothing until all permits that it may not know have ended, or until it
     has counted all partitions. A partition is counted only if its server has had its memory for the margin.
     The same holds after a change of numbers, because tasks may run that started without permits. A partition is counted
     only if it has the change.
  4. A request that is older than the last one is rejected. The last one gets the same answer again.
  5. A report replaces the entry.
]]

-- A partition has permits that others want too for this time. Otherwise each short task would cost a change of hands.
local TURN_MS = 100
-- Without a request from a partition, another worker is sent to it after this time.
local VISIT_AGAIN_MS = 50
-- If others want more, a partition reports again after this time, because its tasks may have ended.
local REPORT_AGAIN_MS = 1000
-- An answer names this many partitions.
local VISITS_AT_MOST = 8
-- Another worker counts after this time.
local COUNT_AGAIN_MS = 1000
-- Credit is kept in this range.
local CREDIT_AT_MOST = 1000
-- A quota this close to a number is that number.
local ALMOST = 1e-6

-- Returns by index how many slots each of some demands has, if parts of slots were possible. The smaller demands get
-- all. The others share the rest by their tenants.
function Grants.quotas(most, demands)
  local quotas, left, open = {}, most, {}
  for index = 1, #demands do
    quotas[index] = 0
    if demands[index].demand > 0 then open[#open + 1] = index end
  end
  local goes_on = true
  while goes_on do
    goes_on = false
    local tenants, others, rest = 0, {}, left
    for each = 1, #open do tenants = tenants + demands[open[each]].tenants end
    for each = 1, #open do
      local index = open[each]
      local its = demands[index]
      quotas[index] = math.min(its.demand, rest * its.tenants / tenants)
      if its.demand <= rest * its.tenants / tenants then
        left, goes_on = left - its.demand, true
      else
        others[#others + 1] = index
      end
    end
    open = others
  end
  return quotas
end

-- Returns whether a demand goes before another by its credit. Those that want nothing are last.
local function goes_before(one, other)
  if (one.demand > 0) ~= (other.demand > 0) then return one.demand > 0 end
  if one.credit ~= other.credit then return one.credit > other.credit end
  return one.partition < other.partition
end

-- Returns the indexes of demands, the one with the most credit first.
local function by_credit(demands)
  local order = {}
  for index = 1, #demands do order[index] = index end
  table.sort(order, function(one, other) return goes_before(demands[one], demands[other]) end)
  return order
end

-- Returns by index how many permits each demand should have, and how many of them it keeps without a turn. A demand gets
-- permits in pieces of `need`, because fewer start no task. The rest goes by turns to the demands with the
-- most credit. If its piece fits at all, the first of them gets it in any case, or it would wait for ever beside smaller tasks.
function Grants.shares(most, demands)
  local quotas, shares, firm, left = Grants.quotas(most, demands), {}, {}, most
  for index = 1, #demands do
    local need = demands[index].need
    shares[index] = math.floor(quotas[index] / need + ALMOST) * need
    left = left - shares[index]
  end
  local order = by_credit(demands)
  for place = 1, #order do
    local index = order[place]
    local its = demands[index]
    local piece = math.min(its.need, its.demand - shares[index])
    local takes = place == 1 and shares[index] == 0 and piece <= most
    for last = #order, takes and 2 or #order + 1, -1 do
      local other = order[last]
      local gives = math.max(0, math.min(shares[other], piece - left))
      shares[other], left = shares[other] - gives, left + gives
    end
    firm[index] = shares[index]
    if piece > 0 and piece <= left then shares[index], left = shares[index] + piece, left - piece end
  end
  return shares, firm
end

--[[
  ledger: the entries of a key, and what the home adds to them.
]]

local function used(entry)
  return math.max(entry.n, entry.held)
end

-- Returns the entries of a key that have not ended, with what else the home has of the key.
function Grants.read(ctx, key, rules)
  local text = redis.call("HGET", ctx.prefix .. Keys.VIRTUAL_TIMES, "grants " .. key)
  local ledger = text and cjson.decode(text) or {since = 0, at = rules.logical, count_at = 0, entries = {}}
  for holder, entry in pairs(ledger.entries) do
    if entry.ends <= rules.logical then ledger.entries[holder] = nil end
  end
  LotGrants.sweep(ledger, rules)
  return ledger
end

-- Returns the logical time until which a home adds nothing from now on without a count. Workers may have different leases.
local function quiet_from_now(rules, longest)
  return rules.logical + longest + Permits.margin_ms(longest)
end

-- The numbers of a key, or of all keys with a pattern, have changed in this partition. `virtual_times` has by `quiet KEY` until
-- when the home of a key adds nothing. It grows with each change.
function Grants.numbers_changed(ctx, key, rules)
  if not Rings.is_partition(ctx) then return end
  local times, field = ctx.prefix .. Keys.VIRTUAL_TIMES, "quiet " .. key
  local longest = math.max(rules.lease_ms, redis.call("HGET", ctx.prefix .. Keys.CLOCK, "longest_lease") or 0)
  local ends = math.max(quiet_from_now(rules, longest), (redis.call("HGET", times, field) or 0) + 1)
  redis.call("HSET", times, field, Rates.int_text(ends))
  redis.call("ZADD", ctx.prefix .. Keys.TIMERS, Rates.int_text(ends), field)
  Clock.note_limited(ctx, rules)
end

-- The time of a change of numbers has come.
function Grants.forget_change(ctx, key)
  redis.call("HDEL", ctx.prefix .. Keys.VIRTUAL_TIMES, "quiet " .. key)
end

-- Returns the logical time until which this server adds nothing, because it may lack what others have. It also returns its
-- name, and the longest lease of the workers that have brought reports.
local function quiet_until(ctx, key, rules)
  local run, clock = Clock.server_id(), ctx.prefix .. Keys.CLOCK
  local kept = redis.call("HMGET", clock, "granter", "quiet_until", "longest_lease")
  local longest = tonumber(kept[3] or 0)
  if longest < rules.lease_ms then
    longest = rules.lease_ms
    redis.call("HSET", clock, "longest_lease", Rates.int_text(longest))
  end
  if kept[1] ~= run then
    kept[2] = Rates.int_text(quiet_from_now(rules, longest))
    redis.call("HSET", clock, "granter", run, "quiet_until", kept[2])
  end
  local fields, ends = {"quiet " .. key}, tonumber(kept[2])
  for _, pattern in ipairs(Config.patterns_of(key, true)) do fields[#fields + 1] = "quiet " .. pattern end
  local changes = redis.call("HMGET", ctx.prefix .. Keys.VIRTUAL_TIMES, unpack(fields))
  for index = 1, #fields do ends = math.max(ends, tonumber(changes[index] or 0)) end
  return ends, run, longest
end

local function holder_of(report)
  return string.format("%d %s", report.partition, report.run)
end

-- Returns whether these reports are those of all partitions, and newer than all entries. Then they replace what the home
-- may lack. Each server must have had its memory for a while, so that no older server of its partition goes on. Each
-- partition must have the numbers of this one, so that it starts nothing without permits any more.
local function is_count(ledger, wanted, numbers)
  if #wanted.reports < wanted.partitions then return false end
  for _, report in ipairs(wanted.reports) do
    local entry = ledger.entries[holder_of(report)]
    if not report.settled or report.numbers ~= numbers or entry and entry.number >= report.number then return false end
  end
  return true
end

-- Returns the numbers of a key by which its home grants: the newest ones, those of its queue, or an override.
local function limit_of(ctx, key, ledger, rules)
  local is_of_queue = Config.is_of_queue(key)
  local limit = Numbers.set({key = key}, not is_of_queue and ledger.own or "")
  if is_of_queue then Config.use_queue_numbers(ctx, limit) end
  if Config.has_overrides(ctx) then Config.replace(limit, Config.override_of_limit(ctx, limit, rules)) end
  return limit
end

-- Entries that need more permits than they have gain credit, and those that have more than their quota lose it. Their mean is 0.
local function move_credits(ledger, most, rules)
  local demands, seconds = {}, math.max(0, rules.logical - ledger.at) / 1000
  for _, entry in pairs(ledger.entries) do
    if entry.demand > 0 then demands[#demands + 1] = entry else entry.credit = 0 end
  end
  local quotas, mean = Grants.quotas(most, demands), 0
  for index = 1, #demands do
    local entry = demands[index]
    -- Permits that are fewer than the first task needs are only gathered.
    local has = entry.n >= entry.need and entry.n or math.min(entry.n, entry.held)
    entry.credit = entry.credit + (quotas[index] - has) * seconds
    mean = mean + entry.credit / #demands
  end
  -- While permits idle, the credits of all grow. At the bound all would be the same, and then a large task would gather permits
  -- and lose them again. So they are always zero together.
  for index = 1, #demands do
    local entry = demands[index]
    entry.credit = math.max(-CREDIT_AT_MOST, math.min(CREDIT_AT_MOST, entry.credit - mean))
  end
  ledger.at = rules.logical
end

-- Notes what a partition has. Servers of the partition that were replaced want nothing. Their credit goes on with the server
-- that reports, because the same tasks wait. Otherwise a large task would have no turn while servers are replaced again and
-- again. The clock may step by a third of the longest lease.
local function note(ledger, report, most, rules, longest)
  local known = ledger.entries[holder_of(report)] or {credit = 0, added_at = 0}
  for _, entry in pairs(ledger.entries) do
    if entry.partition == report.partition then
      if entry ~= known and entry.demand > 0 then known.credit, entry.credit = entry.credit, 0 end
      entry.demand = 0
    end
  end
  known.partition, known.number, known.n, known.held = report.partition, report.number, report.n, report.held
  known.demand, known.need, known.tenants = math.min(report.demand, most), math.max(1, math.min(report.need, most)), report.tenants
  known.ends = rules.logical + rules.lease_ms + Permits.margin_ms(longest)
  known.at, known.visited_at, known.added, known.owed = rules.logical, nil, 0, 0
  ledger.entries[holder_of(report)] = known
  return known
end

-- Returns the entries that want permits or have some, with what each should have, and how many permits nobody has. The
-- third result is whether more are wanted than the partitions share.
local function divide(ledger, most)
  local entries, free, wanted, rest = {}, most, 0, most
  for _, entry in pairs(ledger.entries) do
    free, wanted = free - used(entry), wanted + entry.demand
    if entry.demand == 0 then rest = math.max(0, rest - used(entry)) end
    entries[#entries + 1] = entry
  end
  -- The permits of a server that was replaced come back at their end only. Until then the others share the rest. Otherwise
  -- all would wait for a task that takes more slots than are left.
  local shares, firm = Grants.shares(rest, entries)
  for index = 1, #entries do
    local entry = entries[index]
    entry.share = shares[index]
    -- If others want the permit of a turn, the partition owes it from the start.
    entry.kept = wanted > rest and math.min(firm[index], shares[index]) or shares[index]
  end
  return entries, free, wanted > rest
end

-- Returns how many permits of an entry go back. A partition that still gathers permits for its first task keeps them.
local function owes(entry)
  return entry.n >= entry.share and math.max(0, entry.n - entry.kept) or 0
end

-- Adds to an entry what is free of its share, and notes what the partition owes. Returns how many permits less are free.
local function add(entry, free, rules)
  local before = used(entry)
  -- Bodies whose permits have ended count as used, but they are no permits.
  local room = free + before - entry.n
  entry.added = math.max(0, math.min(entry.share - entry.n, room))
  entry.n = entry.n + entry.added
  entry.owed = owes(entry)
  if entry.added > 0 then entry.added_at = rules.logical end
  return used(entry) - before
end

-- Returns the partitions to which the worker goes next. They get free permits, or have more than their share, or may have
-- idle permits.
local function visits(entries, free, is_contested, rules)
  local found = {}
  for _, index in ipairs(by_credit(entries)) do
    local entry = entries[index]
    local gets = entry.share > entry.n and free > 0
    local gives = owes(entry) > entry.owed
    local is_old = is_contested and entry.n > 0 and rules.logical - entry.at >= REPORT_AGAIN_MS
    local is_visited = entry.visited_at and rules.logical - entry.visited_at < VISIT_AGAIN_MS
    if (gets or gives or is_old) and not is_visited and #found < VISITS_AT_MOST then
      entry.visited_at = rules.logical
      found[#found + 1] = entry.partition
    end
  end
  return found
end

local function contains(list, item)
  for index = 1, #list do
    if list[index] == item then return true end
  end
  return false
end

local function write(ctx, key, ledger, rules)
  local last = LotGrants.last(ledger)
  for _, entry in pairs(ledger.entries) do
    entry.share, entry.kept = nil, nil
    last = math.max(last, entry.ends)
  end
  redis.call("HSET", ctx.prefix .. Keys.VIRTUAL_TIMES, "grants " .. key, cjson.encode(ledger))
  redis.call("ZADD", ctx.prefix .. Keys.TIMERS, Rates.int_text(last), "grants " .. key)
  Clock.note_limited(ctx, rules)
end

-- All entries of a key have ended.
function Grants.forget(ctx, key, rules)
  local ledger = Grants.read(ctx, key, rules)
  if next(ledger.entries) or next(ledger.lots) or next(ledger.texts) then return write(ctx, key, ledger, rules) end
  redis.call("HDEL", ctx.prefix .. Keys.VIRTUAL_TIMES, "grants " .. key)
end

-- Grants permits of a key to the partitions of some reports. `home` is the epoch of this server's memory. Returns the answer of
-- functions/grant_permits.lua.
function Grants.grant(ctx, wanted, rules, home)
  local key, answers, requested = wanted.key, {}, {}
  local ledger, ends, run, longest = Grants.read(ctx, key, rules), quiet_until(ctx, key, rules)
  local counted = run .. " " .. Rates.int_text(ends)
  local is_quiet = rules.logical < ends and ledger.counted ~= counted
  -- Until a home is settled, an older one may go on. A partition that was counted and then replaced would accept its permits.
  local may_count = is_quiet and Permits.is_settled(ctx, home, longest, rules)
  local is_counted = may_count and wanted.counts == ends and is_count(ledger, wanted, Permits.numbers_here(ctx, key, rules))
  if is_counted then ledger.counted, is_quiet = counted, false end
  for _, report in ipairs(wanted.reports) do
    if report.own and report.since >= ledger.since then ledger.own, ledger.since = report.own, report.since end
  end
  local limit = limit_of(ctx, key, ledger, rules)
  local most = limit.concurrency or 0
  -- An override may have a shorter period for a while.
  ledger.longest = next(ledger.lots) and ledger.longest or 0
  for period_ms in pairs(Rates.counted_windows(limit)) do ledger.longest = math.max(ledger.longest, period_ms) end
  if is_counted then LotGrants.recount(ledger, wanted.reports, limit, rules) end
  move_credits(ledger, most, rules)
  for index, report in ipairs(wanted.reports) do
    local entry = ledger.entries[holder_of(report)]
    if report.lot then LotGrants.note(ledger, holder_of(report), report, limit, is_counted, rules) end
    if not entry or entry.number < report.number then
      requested[#requested + 1] = note(ledger, report, most, rules, longest)
    end
    answers[index] = {partition = report.partition, number = report.number}
  end
  local entries, free, is_contested = divide(ledger, most)
  local visit
  for _, entry in ipairs(is_quiet and {} or requested) do free = free - add(entry, free, rules) end
  for index, report in ipairs(wanted.reports) do
    local entry = ledger.entries[holder_of(report)]
    local is_last = entry.number == report.number
    answers[index].added, answers[index].owed = is_last and entry.added or -1, is_last and entry.owed or 0
    answers[index].n, answers[index].turn_ms = entry.n, math.max(0, entry.added_at + TURN_MS - rules.logical)
    local lot = ledger.lots[holder_of(report)]
    if lot and lot.number == report.number then
      if lot.units == 0 and not is_quiet then
        visit = LotGrants.lend(ledger, lot, limit, most > 0 and entry.n - entry.held or math.huge, rules)
      end
      LotGrants.answer(answers[index], lot, rules)
    end
  end
  local goes_to, counts = is_quiet and {} or visits(entries, free, is_contested, rules), may_count and not is_counted and rules.logical >= ledger.count_at
  if visit and not contains(goes_to, visit) then goes_to[#goes_to + 1] = visit end
  if counts then ledger.count_at = rules.logical + COUNT_AGAIN_MS end
  write(ctx, key, ledger, rules)
  return {home = home, answers = answers, visits = #goes_to > 0 and goes_to or nil, counts = counts and ends or nil,
    quiet_ms = is_quiet and ends - rules.logical or nil, most = most, free = math.max(0, free)}
end
