--[[
  requeue: a dead letter waits again, last in its lane. Its deaths are counted from 0.

  keys[1]  prefix    str  what every key of the installation begins with

  args[1]  queue     str  to which the dead letter belongs
  args[2]  record    str  as it lies there
  args[3]  outcome  str  its own if its result is not written yet, or ""

  Returns how many wait again. It returns 0 if the dead letter is gone.
]]
register("requeue", {"allow-oom"}, function(keys, args)
  local ctx, queue, record, outcome = {prefix = keys[1]}, args[1], args[2], args[3]
  ctx.ranked = Clock.ranked(ctx)

  local moved = redis.call("LREM", ctx.prefix .. "dead:" .. queue, 1, record)
  if moved > 0 then
    if outcome ~= "" then redis.call("ZREM", ctx.prefix .. "outcomes", outcome) end
    redis.call("HINCRBY", ctx.prefix .. "counts", "requeued", moved)
    local task, message = Tasks.read_record(record)
    task.seq, task.deaths = redis.call("INCR", ctx.prefix .. "sequence"), 0
    Lanes.enqueue(ctx, queue, task, message, false)
    Events.write_event_of(ctx, "fairness.requeued", queue, task, message)
  end
  return moved
end)
