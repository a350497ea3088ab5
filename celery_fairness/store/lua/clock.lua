--[[
  clock: the server's time, and the logical clock by which leases live.

  The logical clock follows TIME. It advances by at most a third of a lease per call. So an outage or a jump of the
  server's clock cannot end a lease before its worker could renew it. It never goes behind the time that it has
  noted. If TIME goes back, it loses only the step that it had not noted yet.

  read_clock has these arguments.

  lease_ms     int   the caller's lease
  frozen_ms    str   "" in production; a time in ms, set only by tests

  It returns logical, now and epoch (all ms), the other fields of the hash `clock`, and seen. The value of seen is in
  ms, and nil if there was no clock. The context gets `ranked`, `several` (a task has taken several units of a key, or a
  key has saved), `slots` (a task has taken or awaited several slots of a key), `bursts`, `has_patterns` and `looks_again`.
]]
-- The version of the table layout of an installation. Tables with another number belong to another version of
-- the library.
local SCHEMA = "2"
-- The field of the clock with the last use of this library.
local USED = "lib:" .. LIBRARY

-- `schema` is that of the clock, or nil if no worker has called yet.
function Clock.check_schema(schema)
  if schema and schema ~= SCHEMA then
    error({err = "SCHEMA the tables have the schema " .. schema .. ", this version reads " .. SCHEMA ..
      ": run the version that wrote them, or use another namespace"})
  end
end

-- Notes the flags of the clock by which a call leaves out commands: `ranked`, `several`, `slots`, `bursts` and `looks_again`.
-- It is for calls that read nothing else of the clock.
function Clock.read_context(ctx)
  local kept = redis.call("HMGET", ctx.prefix .. Keys.CLOCK, "ranked", "schema", "several", "slots", "bursts",
    "looks_again")
  Clock.check_schema(kept[2])
  ctx.ranked, ctx.several, ctx.slots, ctx.bursts, ctx.looks_again = kept[1], kept[3], kept[4], kept[5], kept[6]
end

-- Returns the server's time in ms. `frozen_ms` is as for read_clock.
function Clock.server_now(frozen_ms)
  if frozen_ms ~= "" then return tonumber(frozen_ms) end
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

function Clock.read_clock(ctx, lease_ms, frozen_ms)
  local now = Clock.server_now(frozen_ms)
  local kept = redis.call(
    "HMGET", ctx.prefix .. Keys.CLOCK, "logical", "seen", "epoch", "limited", "has_overrides", "expiring",
    "parked", "has_backoff", "traced", "ranked", "run_times", "schema", USED, "version",
    "tenant_published", "checked", "unique", "paced", "has_patterns", "looks_again", "several",
    "slots", "bursts")
  Clock.check_schema(kept[12])
  local flags = {
    limited = kept[4], has_overrides = kept[5], expiring = kept[6], parked = kept[7], has_backoff = kept[8],
    traced = kept[9] and tonumber(kept[9]) > now, ranked = kept[10], run_times = kept[11], used = kept[13],
    version = tonumber(kept[14] or 0), tenant_published = kept[15], checked = kept[16],
    unique = kept[17] or false, paced = kept[18],
  }
  ctx.has_patterns, ctx.looks_again, ctx.several, ctx.slots, ctx.bursts = kept[19], kept[20], kept[21], kept[22], kept[23]
  local logical = tonumber(kept[1])
  if not logical then return now, now, now, flags, nil end
  local seen = tonumber(kept[2])
  local step = now - seen
  if step < 0 then step = 0 end
  local longest = math.floor(lease_ms / 3)
  if step > longest then step = longest end
  return logical + step, now, tonumber(kept[3]), flags, seen
end

--[[
  tick: read the clock and move it on. Every function that takes or keeps a lease calls it first.

  The clock does not note a step shorter than NOTE_AFTER_MS. The next call then takes the longer step.
]]

-- It is small against a third of the shortest lease, which is 333 ms.
local NOTE_AFTER_MS = 50
-- The last use of this library is exact to this time. A person who removes old libraries reads it.
local NOTE_USE_AFTER_MS = 3600000

function Clock.tick(ctx, lease_ms, frozen_ms)
  local clock_key = ctx.prefix .. Keys.CLOCK
  local logical, now, epoch, flags, seen = Clock.read_clock(ctx, lease_ms, frozen_ms)
  if not seen then
    redis.call("HSET", clock_key, "server", Clock.server_id(), "began", string.format("%.0f", now))
  end
  if not flags.used or math.abs(now - flags.used) >= NOTE_USE_AFTER_MS then
    redis.call("HSET", clock_key, USED, string.format("%.0f", now), "schema", SCHEMA)
  end
  if not seen or math.abs(now - seen) >= NOTE_AFTER_MS then
    redis.call("HSET", clock_key,
      "logical", string.format("%.0f", logical),
      "seen", string.format("%.0f", now),
      "epoch", string.format("%.0f", epoch))
  end
  return logical, now, epoch, flags
end

-- A task takes several units, so from now on calls read what keys save and what promotions reserve.
function Clock.note_several(ctx)
  if ctx.several then return end
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "several", 1)
  ctx.several = "1"
end

-- A task takes or awaits several slots, so from now on calls count slots beside leases.
function Clock.note_slots(ctx)
  if ctx.slots then return end
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "slots", 1)
  ctx.slots = "1"
end

-- Claims look at closed limits and at `timers` from now on.
function Clock.note_limited(ctx, rules)
  if rules.limited then return end
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "limited", 1)
  rules.limited = "1"
end

-- A task without a valid tenant has come.
function Clock.note_invalid(ctx, now)
  redis.call("HSET", ctx.prefix .. Keys.CLOCK, "invalid_at", string.format("%.0f", now))
end

--[[
  The server that holds the memory: its `master_replid`, which is a new one with each start and each promotion.

  A memory that another server has written may be older than the state of the workers. Examples are a restored
  file, an append-only file without its last second, and a promoted replica. So it has an epoch of its own.

  A server that fails over may come back as the same process, with the memory of its replica. Its `run_id` is the
  same then. `master_replid` also changes if a primary gets its first replica, or had none for `repl-backlog-ttl`. That
  is a new epoch too, which costs each process one renewal.

  server_id returns "" if the caller may not run INFO. In that case only an empty memory is noticed.
]]

function Clock.server_id()
  local info = redis.pcall("INFO", "replication")
  return type(info) == "string" and string.match(info, "master_replid:(%x+)") or ""
end

-- Returns the epoch. If another server wrote the memory, the epoch is a new one.
function Clock.meet_server(ctx, epoch, now)
  local clock_key = ctx.prefix .. Keys.CLOCK
  local id = Clock.server_id()
  if id == "" or redis.call("HGET", clock_key, "server") == id then return epoch end
  epoch = math.max(now, epoch + 1)
  redis.call("HSET", clock_key, "server", id, "epoch", string.format("%.0f", epoch))
  return epoch
end
