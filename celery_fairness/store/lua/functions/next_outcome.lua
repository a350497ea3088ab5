--[[
  next_outcome: hand out the `outcome` of a task that ended for good without a process to write its result.

  The function also deletes the `outcome` whose result the caller has written. An `outcome` is handed out again
  after one lease, so that it is not lost with the worker that took it.

  A dead letter may be requeued while its result is written, and end once more. Its sequence number is another one
  then, so the caller deletes no later `outcome`.

  Leases that ended are cleared away first. A worker without a free place claims nothing, but it calls this
  function.

  args[1]  written        str  `seq tag` of the `outcome` whose result is written, or ""
  args[2-6] settings      any  of the worker (Tenants.rules_of)
  args[7]  frozen_ms      str  "" in production (server TIME); set only by tests

  Returns {} or `{seq, tag, owner, state, queue, tenant, deaths, message}`.
]]
-- One call clears away at most this many leases.
local DUE_AT_MOST = 16

register("next_outcome", {"allow-oom"}, function(keys, args)
  local ctx, written, frozen_ms = {prefix = keys[1], memo = {}, result = {}}, args[1], args[7]
  local rules = Tenants.rules_of(ctx, args, 2, frozen_ms)
  Leases.expire(ctx, rules, DUE_AT_MOST)

  if written ~= "" then
    local seq, tag = string.match(written, "^(%d+) (.+)$")
    local task = Tasks.read(ctx, tag)
    -- The record of a dead letter stays.
    if task and task.seq == tonumber(seq) and Settle.forget_outcome(ctx, tag)
      and not redis.call("ZSCORE", ctx.prefix .. Keys.DEAD .. task.queue, tag) then
      Tasks.delete(ctx, task.tag, task.id)
    end
  end
  local outcomes = ctx.prefix .. Keys.OUTCOMES
  local tag = redis.call("ZRANGEBYSCORE", outcomes, "-inf", rules.logical, "LIMIT", 0, 1)[1]
  if not tag then return {} end
  local task = Tasks.read(ctx, tag)
  if not task then
    Stats.count_lost(ctx)
    Settle.forget_outcome(ctx, tag)
    return {}
  end
  local state, owner = Settle.outcome_of(task)
  redis.call("ZADD", outcomes, rules.logical + rules.lease_ms, tag)
  return {task.seq, tag, owner, state, task.queue, task.tenant, task.deaths, Tasks.message_of(ctx, tag)}
end)
