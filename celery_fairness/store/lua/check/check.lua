--[[
  check: compare the tables of an installation while it works, and repair what needs no guess.

  The caller walks over the names of all keys and passes them with a cursor each. A call looks at a few rows, each
  of them with all that must agree with it. So what a call finds did not agree at one moment.

  Invariant: `check` and `repair` find the same. `repair` also calls the function that mends a finding.

  args[1]  lease_ms       int  how long a lease lives without a renewal
  args[2]  default_tier   str  for a tier that is not known
  args[3]  default_numbers  str  of the default tier, as a text (numbers.lua)
  args[4]  frozen_ms      str  "" in production (server TIME); set only by tests
  args[5+] keys           str  pairs of a key without the prefix and a cursor, which is "0" at first

  Returns {rest, findings}. `rest` has the pairs at which the next call goes on. A finding is {name, key, row,
  mended, problem}. `mended` is 1 if this call repaired it. `problem` is the error of a row that cannot be read.
]]
-- One call looks at about this many rows. It finishes a page that it has begun, which has at most 512 rows.
local ROWS_AT_MOST = 100
-- One page of a table. If the values of a table are messages, a page has fewer.
local PAGE, MESSAGES = 50, 10

-- Returns the check of a key that no claim and no gate looks at if the clock lacks its flag.
function Check.needs(flag)
  return function(it) Check.flag(it, flag) end
end

-- Returns for each kind of key the checks of the key as a whole and of each of its rows.
function Check.kinds()
  return {
    changes = {whole = Check.needs("has_overrides"), row = Waits.change, scan = "HSCAN"},
    expires = {whole = Check.needs("expiring")},
    tenant = {whole = Check.needs("tenant_published")},
    running = {row = Rows.running, scan = "HSCAN"},
    leases = {whole = Rows.leases, row = Rows.lease, scan = "ZSCAN"},
    reserved = {row = Rows.reserved, scan = "ZSCAN"},
    tenant_state = {whole = Places.tenant, row = Places.field, scan = "HSCAN"},
    at_limit = {row = Places.closed, scan = "ZSCAN"},
    waiting = {row = Places.count, scan = "HSCAN"},
    lane = {whole = Places.lane, row = Places.tag, scan = "ZSCAN"},
    tasks = {row = Places.task, scan = "HSCAN"},
    scheduled_of = {row = Places.scheduled_of, scan = "ZSCAN"},
    messages = {row = Places.message, scan = "HSCAN", page = MESSAGES},
    active = {whole = Places.queue, row = Places.member, scan = "ZSCAN"},
    blocked = {whole = Places.queue, row = Places.member, scan = "ZSCAN"},
    lend = {whole = Check.needs("bursts"), row = Places.lent, scan = "ZSCAN"},
    ranked = {row = Places.rank, scan = "ZSCAN"},
    rank = {row = Places.member_of_rank, scan = "ZSCAN"},
    blocked_lanes = {whole = Waits.lanes},
    group = {row = Waits.tenant, scan = "ZSCAN"},
    groups_at = {row = Waits.group, scan = "ZSCAN"},
    available = {whole = Check.needs("limited"), row = Waits.limit, scan = "ZSCAN"},
    unique = {row = Rows.unique, scan = "HSCAN"},
    window = {whole = Waits.window},
    virtual_times = {row = Rows.of_key, scan = "HSCAN"},
    queue_limits = {whole = Check.needs("limited"), row = Waits.queue, scan = "HSCAN"},
  }
end

-- Notes a finding. If the call repairs, it calls `mend`, which is nil if a repair would have to guess.
function Check.found(it, name, key, row, mend)
  local mended, problem = false, ""
  if it.repairs and mend then
    mended, problem = pcall(mend)
    problem = mended and "" or Check.text_of(problem)
  end
  it.found[#it.found + 1] = {name, key, row, mended and 1 or 0, problem}
end

function Check.text_of(problem)
  return type(problem) == "table" and problem.err or tostring(problem)
end

-- Runs one check. A row that a check cannot read is a finding, and the others go on.
function Check.run(it, check, key, ...)
  it.left = it.left - 1
  local done, problem = pcall(check, it, ...)
  if not done then
    local row = select(2, ...)
    it.found[#it.found + 1] = {"unreadable", key, row or "", 0, Check.text_of(problem)}
  end
end

-- Returns the cursor at which the key goes on, or "0" if nothing of it is left.
function Check.look_at(it, key, cursor)
  local kind, name = string.match(key, "^([^:]*):?(.*)$")
  local checks = it.kinds[kind]
  if not checks then return "0" end
  if checks.whole and cursor == "0" then Check.run(it, checks.whole, key, name) end
  if not checks.row then return "0" end
  local page = redis.pcall(checks.scan, it.ctx.prefix .. key, cursor, "COUNT", checks.page or PAGE)
  if page.err then
    it.found[#it.found + 1] = {"unreadable", key, "", 0, page.err}
    return "0"
  end
  -- A page has a value or a score behind each row. A check reads it anew, because a repair may have changed it.
  for index = 1, #page[2], 2 do Check.run(it, checks.row, key, name, page[2][index]) end
  return page[1]
end

function Check.flag(it, flag)
  local clock = it.ctx.prefix .. Keys.CLOCK
  if redis.call("HEXISTS", clock, flag) == 1 then return end
  Check.found(it, "flag_missing", "clock", flag, function() redis.call("HSET", clock, flag, 1) end)
end

-- Returns whether a pause or an override of a key has ended that the next claim still has to end.
function Check.is_over(it, key)
  local changes, patterns = {"pause " .. key, "override " .. key}, Config.patterns_of(key, true)
  for index = 1, #patterns do changes[#changes + 1] = "override " .. patterns[index] end
  local ends = redis.call("ZMSCORE", it.ctx.prefix .. Keys.CHANGES_END, unpack(changes))
  for index = 1, #changes do
    if tonumber(ends[index] or math.huge) <= it.rules.now then return true end
  end
  return false
end

function Check.call(keys, args, repairs)
  local ctx, lease_ms, frozen_ms = {prefix = keys[1], memo = {}, result = {}}, tonumber(args[1]), args[4]
  local read = repairs and Clock.tick or Clock.read_clock
  local logical, now, _, flags = read(ctx, lease_ms, frozen_ms)
  ctx.ranked = flags.ranked
  local rules = {logical = logical, now = now, lease_ms = lease_ms, enforcement = "on", default_tier = args[2],
    default_numbers = args[3], version = flags.version, checked = tonumber(flags.checked),
    limited = flags.limited, has_overrides = flags.has_overrides, parked = flags.parked, only_reads = not repairs}
  local it = {ctx = ctx, rules = rules, repairs = repairs, kinds = Check.kinds(), left = ROWS_AT_MOST, found = {}}

  local rest = {}
  for index = 5, #args, 2 do
    local key, cursor = args[index], args[index + 1]
    local waits = it.left <= 0
    if not waits then cursor = Check.look_at(it, key, cursor) end
    if waits or cursor ~= "0" then
      rest[#rest + 1] = key
      rest[#rest + 1] = cursor
    end
  end
  return {rest, it.found}
end

register("check", {"no-writes"}, function(keys, args) return Check.call(keys, args, false) end)
register("repair", {"allow-oom"}, function(keys, args) return Check.call(keys, args, true) end)
