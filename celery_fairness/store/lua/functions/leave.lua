--[[
  The way back to the stock transport (transport/migration.py).

  scheduled: the first tasks of a queue that wait for their time. The function writes nothing.

  keys[1]  prefix  str  what every key of the installation begins with

  args[1]  queue   str  whose tasks
  args[2]  most    int  how many at most

  Returns the tag and the message of each, in one list.
]]
register("scheduled", {"no-writes"}, function(keys, args)
  local ctx, answer = {prefix = keys[1]}, {}
  local members = redis.call("ZRANGE", ctx.prefix .. "later:" .. args[1], 0, tonumber(args[2]) - 1)
  for index = 1, #members do
    local tag = Schedule.tag_of(members[index])
    answer[#answer + 1] = tag
    answer[#answer + 1] = Tasks.message_of(ctx, tag)
  end
  return answer
end)

--[[
  remove: take a waiting task out of its queue. Another broker has it now.

  A claim may have moved the task into its lane since `scheduled`, and then it leaves the lane. A task that runs
  stays as it is.

  keys[1]  prefix  str  what every key of the installation begins with

  args[1]  tag     str  of the task

  Returns 1 if the task waited, otherwise 0.
]]
register("remove", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1]}
  ctx.ranked = Clock.ranked(ctx)

  return Settle.withdraw(ctx, args[1]) and 1 or 0
end)

--[[
  holders: the processes that hold tasks of a queue. The function writes nothing.

  keys[1]  prefix  str  what every key of the installation begins with

  args[1]  queue   str  whose tasks

  Returns the owners, each once.
]]
register("holders", {"no-writes"}, function(keys, args)
  local ctx, queue, answer, seen = {prefix = keys[1]}, args[1], {}, {}
  local rows = redis.call("HGETALL", ctx.prefix .. "running")
  for index = 1, #rows, 2 do
    local task, owner = Tasks.read(ctx, rows[index]), Tasks.read_row(rows[index + 1]).owner
    if task and task.queue == queue and not seen[owner] then
      seen[owner] = true
      answer[#answer + 1] = owner
    end
  end
  return answer
end)
