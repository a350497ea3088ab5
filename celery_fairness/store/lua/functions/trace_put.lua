--[[
  trace_put: report that another broker is given a task, while somebody watches (trace.lua).

  The event has no rank, because that broker alone orders its tasks.

  args[1]  job        str  "ID NAME QUEUE" of the task
  args[2]  key        str  of its tenant's tier limit; "" is a system task
  args[3]  tier       str  its tenant's, as the message has it
  args[4]  cost       str  units that it is charged
  args[5]  eta_ms     int  server time before which it does not start; 0 is none
  args[6]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns how many events were written. It returns 0 if nobody watches.
]]
register("trace_put", {"allow-oom"}, function(keys, args)
  local ctx, job, key, tier = {prefix = keys[1], memo = {}, result = {}}, args[1], args[2], args[3]
  local cost, eta_ms, frozen_ms = args[4], tonumber(args[5]), args[6]

  local now = Clock.server_now(frozen_ms)
  if tonumber(redis.call("HGET", ctx.prefix .. Keys.CLOCK, "traced") or 0) <= now then return 0 end
  Events.emit_trace(ctx, "task.put", Events.read_job(job), Events.tenant_of(key), "tier", tier,
    "cost", cost, "rank", "", "eta", string.format("%.0f", math.max(now, eta_ms)))
  return 1
end)
