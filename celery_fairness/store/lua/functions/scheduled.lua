--[[
  scheduled: the first tasks of a queue that wait for their time. transport/migration.py moves them back to the stock
  transport. The function writes nothing.

  args[1]  queue   str  whose tasks
  args[2]  most    int  how many at most

  Returns the tag and the message of each, in one list.
]]
register("scheduled", {"no-writes"}, function(keys, args)
  local ctx, answer = {prefix = keys[1], memo = {}, result = {}}, {}
  local members = redis.call("ZRANGE", ctx.prefix .. Keys.SCHEDULED .. args[1], 0, tonumber(args[2]) - 1)
  for index = 1, #members do
    local tag = Schedule.tag_of(members[index])
    answer[#answer + 1] = tag
    answer[#answer + 1] = Tasks.message_of(ctx, tag)
  end
  return answer
end)
