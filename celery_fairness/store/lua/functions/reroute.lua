--[[
  move: move waiting tasks to another queue, that of their tenant's new tier.

  Each task keeps its place among all tasks, its time and its expiry. If the target is partitioned, a task gets
  the partition in the pair. If the pair has none, the task gets the partition for tasks without one. A task that
  runs, or that is gone, stays as it is.

  keys[1]  prefix     str  what every key of the installation begins with

  args[1]  queue      str  where they wait
  args[2]  target     str  where they go to
  args[3+] pairs      str  a record, as it was read where the task waits, and the key of its partition
                           in the target, or ""

  Returns for each task 1 if this call moved it, otherwise 0.
]]
register("reroute", {"allow-oom"}, function(keys, args)
  local ctx, queue, target = {prefix = keys[1]}, args[1], args[2]
  ctx.ranked = Clock.ranked(ctx)

  if queue == target then return redis.error_reply("move: expected two queues, got: " .. queue) end

  local function move(task, message, record, part)
    local due = Lanes.remove_waiting(ctx, queue, task, record)
    if not due then return false end
    task.limits = Config.in_partition(ctx, target, Config.without_partition(task.limits), part)
    local ends_at = redis.call("ZSCORE", ctx.prefix .. "expires:" .. queue, task.tag)
    if ends_at then
      redis.call("ZREM", ctx.prefix .. "expires:" .. queue, task.tag)
      redis.call("ZADD", ctx.prefix .. "expires:" .. target, ends_at, task.tag)
    end
    if due == true then
      Lanes.enqueue_back(ctx, target, task, message)
    else
      Schedule.wait_until(ctx, target, task, message, due)
    end
    return true
  end

  local answer = {}
  for index = 3, #args, 2 do
    local task, message = Tasks.read_record(args[index])
    answer[#answer + 1] = move(task, message, args[index], args[index + 1]) and 1 or 0
  end
  return answer
end)
