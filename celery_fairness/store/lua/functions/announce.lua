--[[
  announce: a worker process reports that it lives and whether it enforces limits.

  The answer is whether Redis lost its memory since the epoch that the worker sends. The first caller with an
  older epoch adds the event and the count. Each lost memory has them once, for any number of workers.

  Every call adds minutes that are over to the totals (stats.lua), and looks at the limits of the worker's app
  (saturation.lua).

  args[1]  lease_ms     int  how long a lease lives without a renewal
  args[2]  worker       str  the worker as JSON (control/installation/workers.py); "" if the caller is no worker
  args[3]  lives_ms     int  how long the worker is listed without another announcement; 0 ends it
  args[4]  epoch        str  the epoch the caller knew, or ""
  args[5]  frozen_ms    str  "" in production (server TIME); set only by tests
  args[6]  enforcement  str  "on", "observe" or "off"
  args[7+] limits       str  those that the app of the worker declares, as a task has them (limits.lua)

  Returns "lost" if this memory began after the caller's epoch, otherwise "kept".
]]
-- One call takes at most this many workers from the list that ended without a last announcement.
local FORGET_AT_MOST = 64

register("announce", {"allow-oom"}, function(keys, args)
  local ctx, lease_ms, worker = {prefix = keys[1], memo = {}, result = {}}, tonumber(args[1]), args[2]
  local lives_ms, known_epoch, frozen_ms = tonumber(args[3]), args[4], args[5]

  local logical, now, _, flags = Clock.tick(ctx, lease_ms, frozen_ms)
  if worker ~= "" then
    local ended = redis.call(
      "ZRANGEBYSCORE", ctx.prefix .. Keys.WORKERS, "-inf", now, "LIMIT", 0, FORGET_AT_MOST)
    ended[#ended + 1] = worker
    redis.call("ZREM", ctx.prefix .. Keys.WORKERS, unpack(ended))
    if lives_ms > 0 then
      redis.call("ZADD", ctx.prefix .. Keys.WORKERS, string.format("%.0f", now + lives_ms), worker)
      redis.call("PEXPIRE", ctx.prefix .. Keys.WORKERS, lives_ms)
    end
  end
  Stats.fold_minutes(ctx, now)
  local rules = {logical = logical, now = now, enforcement = args[6], parked = flags.parked}
  Saturation.add_time(ctx, rules, {unpack(args, 7)}, lease_ms)
  local began = tonumber(redis.call("HGET", ctx.prefix .. Keys.CLOCK, "began") or 0)
  local lost = known_epoch ~= "" and began > tonumber(known_epoch)
  if lost and redis.call("HSETNX", ctx.prefix .. Keys.CLOCK, "loss_reported", 1) == 1 then
    Events.write_event(ctx, "fairness.memory_lost", "since", known_epoch)
    redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "memory_lost", 1)
  end
  return lost and "lost" or "kept"
end)
