--[[
  put_off: report that a promoted task could not be published.

  The task is promoted again after a pause. The pause doubles with each try, up to one lease. Until then the task
  reserves no start, and other tasks may take its slots.

  keys[1]  prefix    str  what every key of the installation begins with

  args[1]  lease_ms  int  how long a lease lives without a renewal
  args[2]  tag       str  what all copies of the message have in common

  Returns how often the task could not be published. It returns 0 if the task is not promoted any more.
]]
-- The first pause is this part of a lease.
local FIRST_PAUSE = 1 / 16

register("put_off", {"allow-oom"}, function(keys, args)
  local ctx, lease_ms, tag = {prefix = keys[1]}, tonumber(args[1]), args[2]

  local tries = 0
  local record = redis.call("HGET", ctx.prefix .. "gate_tasks", tag)
  local ends_at = record and redis.call("ZSCORE", ctx.prefix .. "gate_promoted", tag)
  if ends_at then
    local task = Parked.read_parked(record)
    Parked.leave_gate(ctx, task.key, tag, Parked.parked_places(task.key, task.words))
    tries = redis.call("HINCRBY", ctx.prefix .. "copy:" .. tag, "tries", 1)
    local pause_ms = math.min(lease_ms, lease_ms * FIRST_PAUSE * 2 ^ (tries - 1))
    -- Its score was the time one lease after its promotion.
    redis.call("ZADD", ctx.prefix .. "gate_promoted", Rates.whole(tonumber(ends_at) - lease_ms + pause_ms), tag)
  end
  return tries
end)
