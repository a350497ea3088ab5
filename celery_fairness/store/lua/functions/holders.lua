--[[
  holders: the processes that hold tasks of a queue. The function writes nothing.

  args[1]  queue   str  whose tasks

  Returns the owners, each once.
]]
register("holders", {"no-writes"}, function(keys, args)
  local ctx, queue, answer, seen = {prefix = keys[1]}, args[1], {}, {}
  local rows = redis.call("HGETALL", ctx.prefix .. Keys.RUNNING)
  for index = 1, #rows, 2 do
    local task, owner = Tasks.read(ctx, rows[index]), Tasks.read_row(rows[index + 1]).owner
    if task and task.queue == queue and not seen[owner] then
      seen[owner] = true
      answer[#answer + 1] = owner
    end
  end
  return answer
end)
