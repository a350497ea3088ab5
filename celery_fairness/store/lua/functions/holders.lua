--[[
  holders: a page of the processes that hold tasks of a queue. The function writes nothing.

  args[1]  queue   str  whose tasks
  args[2]  cursor  str  of the page, "0" at first

  Returns {next, OWNER, …}. `next` is the cursor of the next page, "0" after the last. Pages may repeat an owner.
]]
-- About this many running tasks are read in one call.
local PAGE = 300

register("holders", {"no-writes"}, function(keys, args)
  local ctx, queue, seen = {prefix = keys[1], memo = {}, result = {}}, args[1], {}
  local cursor, rows = unpack(redis.call("HSCAN", ctx.prefix .. Keys.RUNNING, args[2], "COUNT", PAGE))
  local answer = {cursor}
  for index = 1, #rows, 2 do
    local task, owner = Tasks.read(ctx, rows[index]), Tasks.read_row(rows[index + 1]).owner
    if task and task.queue == queue and not seen[owner] then
      seen[owner] = true
      answer[#answer + 1] = owner
    end
  end
  return answer
end)
