--[[
  reroute: move waiting tasks to another queue, that of their tenant's new tier.

  Each task keeps its place among all tasks, its time and its expiry. If the target is partitioned, a task gets
  the partition in the pair. If the pair has none, the task gets the partition for tasks without one. A task that
  runs, or that is gone, stays as it is.

  args[1]  target     str  where they go to
  args[2+] pairs      str  the tag of a task, and the key of its partition in the target, or ""

  Returns for each task 1 if this call moved it, otherwise 0.
]]
register("reroute", {"allow-oom"}, function(keys, args)
  local ctx, target = {prefix = keys[1], memo = {}, result = {}}, args[1]
  Clock.read_context(ctx)

  local function move(tag, part)
    local task = Tasks.read(ctx, tag)
    local queue = task and task.queue
    local due = task and queue ~= target and Lanes.remove_waiting(ctx, task)
    if not due then return false end
    task.limits = Config.in_partition(ctx, target, Config.without_partition(task.limits), part)
    local ends_at = redis.call("ZSCORE", ctx.prefix .. Keys.EXPIRES .. queue, tag)
    if ends_at then
      redis.call("ZREM", ctx.prefix .. Keys.EXPIRES .. queue, tag)
      redis.call("ZADD", ctx.prefix .. Keys.EXPIRES .. target, ends_at, tag)
    end
    if due == true then
      Lanes.enqueue(ctx, target, task, false)
    else
      Schedule.wait_until(ctx, target, task, due)
    end
    return true
  end

  local answer = {}
  for index = 2, #args, 2 do answer[#answer + 1] = move(args[index], args[index + 1]) and 1 or 0 end
  return answer
end)
