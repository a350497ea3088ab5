--[[
  requeue: a dead letter waits again, last in its lane. Its deaths are counted from 0, and limits that reject it
  are reported again.

  args[1]  tag       str  of the task

  Returns 1 if it waits again, and 0 if it is no dead letter.
]]
register("requeue", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1], memo = {}, result = {}}
  Clock.read_context(ctx)

  local task = Tasks.read(ctx, args[1])
  if not task or redis.call("ZREM", ctx.prefix .. Keys.DEAD .. task.queue, task.tag) == 0 then return 0 end
  Queues.forget_empty(ctx, task.queue)
  Settle.forget_outcome(ctx, task.tag)
  redis.call("HINCRBY", ctx.prefix .. Keys.COUNTERS, "requeued", 1)
  task.seq, task.deaths, task.blocked = Tasks.next_seq(ctx), 0, ""
  Lanes.enqueue(ctx, task.queue, task, false)
  Events.write_event_of(ctx, "fairness.requeued", task)
  return 1
end)
