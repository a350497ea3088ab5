--[[
  waiting: a page of the waiting tasks of a tenant in a queue, those of a lane in their order. The function writes
  nothing.

  args[1]  key     str  of the tenant's tier limit
  args[2]  queue   str  where they wait
  args[3]  lane    str  of the last task of the page before, "" for the first page
  args[4]  seq     int  of that task

  Returns {lane, seq, ...}, and the tag and the head of each task. The lane is "" if there is no further page.
]]
-- A call reads at most this many lanes. Only a tenant with as many names and limits has more.
local LANES_AT_MOST = 1024
local PAGE = 50

register("waiting", {"no-writes"}, function(keys, args)
  local ctx, key, queue, after = {prefix = keys[1], memo = {}, result = {}}, args[1], args[2], args[3]
  local lanes, tags, lane, seq = Lanes.all_of(ctx, key, queue, LANES_AT_MOST), {}, "", "0"
  table.sort(lanes)
  for index = 1, #lanes do
    if lanes[index] >= after and #tags < PAGE then
      local from = lanes[index] == after and "(" .. args[4] or "-inf"
      local some = redis.call("ZRANGEBYSCORE", ctx.prefix .. Lanes.tags_name(key, lanes[index], queue), from, "+inf",
        "WITHSCORES", "LIMIT", 0, PAGE - #tags)
      for place = 1, #some, 2 do
        tags[#tags + 1], lane, seq = some[place], lanes[index], some[place + 1]
      end
    end
  end
  if #tags < PAGE then lane = "" end
  local answer, heads = {lane, seq}, #tags > 0 and redis.call("HMGET", ctx.prefix .. Keys.TASKS, unpack(tags)) or {}
  for index = 1, #tags do
    answer[#answer + 1] = tags[index]
    answer[#answer + 1] = heads[index] or ""
  end
  return answer
end)
