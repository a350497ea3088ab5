--[[
  totals: what claims and gates counted since the memory began, and the state of some limits. The function writes
  nothing.

  The argument is a JSON object:
  lease_ms     how long a lease lives without a renewal
  frozen_ms    "" in production (server TIME); set only by tests
  enforcement  "on", "observe" or "off"
  limits       limits as a task has them (limits.lua)

  Returns JSON.
  - now     the server's time in ms
  - totals  counts by field, as in `totals` (stats.lua)
  - counts  counts by field, as in `counters`
  - limits  rows [KEY, HELD, MAXIMUM, WAITING, WHY, SATURATED_MS, RATES, THROTTLE]. MAXIMUM is the concurrency now, and -1 is
            unlimited. RATES and THROTTLE are those of snapshot.lua, only in a partition.
            WAITING counts the tasks that have a limit of this key. WHY is "paused", "cools", "full", "rate" or
            "throttle", or "" if a task may start. SATURATED_MS is the total of saturation.lua.
]]
-- One limit takes about ten microseconds.
local LIMITS_AT_MOST = 100

local function limit_row(ctx, spec, rules)
  local limit = Limits.limit_now(ctx, spec, rules)
  -- The caller adds up what the partitions have, so the permits and lots of this one are left out (limiter/merged_answers.py).
  limit.permits, limit.needs_lot = nil, nil
  local _, _, why = Limits.wait_ms(ctx, limit, rules)
  local waiting = tonumber(redis.call("HGET", ctx.prefix .. Keys.WAITING_AT, limit.key) or 0)
  local queue = string.sub(limit.key, 1, 6) == "queue:" and Config.queue_of_key(ctx, limit.key)
  if queue then waiting = waiting + (redis.call("HGET", ctx.prefix .. Keys.WAITING, queue) or 0) end
  local row = {limit.key, Slots.held(ctx, limit.key), limit.concurrency or -1, waiting,
    why or "", Saturation.total_ms(ctx, limit.key)}
  if Rings.is_partition(ctx) then
    local window = Rates.read(ctx, limit.key)
    row[7] = Snapshot.rates_of(window, limit, rules.logical) or {}
    row[8] = Snapshot.throttle_of(window, limit, rules.logical) or {}
  end
  return row
end

register_json("totals", {"no-writes"}, function(ctx, wanted)
  local logical, now, _, flags = Clock.read_clock(ctx, wanted.lease_ms, wanted.frozen_ms)
  local rules = {logical = logical, now = now, enforcement = wanted.enforcement, parked = flags.parked}
  local flat, counts, limits = redis.call("HGETALL", ctx.prefix .. Keys.COUNTERS), {}, {}
  for index = 1, #flat, 2 do counts[flat[index]] = tonumber(flat[index + 1]) end
  for index = 1, math.min(#wanted.limits, LIMITS_AT_MOST) do
    limits[index] = limit_row(ctx, wanted.limits[index], rules)
  end
  return {now = now, totals = Stats.totals_of(ctx, now), counts = counts, limits = limits}
end)
