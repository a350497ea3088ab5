--[[
  dead_letters: a page of the dead letters. The function writes nothing.

  args[1]  queue   str  whose dead letters, or "" for all queues
  args[2]  first   int  how many are left out
  args[3]  most    int  how many are returned at most

  Queues are in the order of their names; the newest letter of a queue comes first. Returns {COUNTS, ROW, …}:
  - COUNTS  {QUEUE, LETTERS, …} of all queues that have any, by name
  - ROW     as `find` returns it
]]
register("dead_letters", {"no-writes"}, function(keys, args)
  local ctx, only, skipped, most = {prefix = keys[1], memo = {}, result = {}}, args[1], tonumber(args[2]), tonumber(args[3])
  local queues = redis.call("SMEMBERS", ctx.prefix .. Keys.QUEUES)
  table.sort(queues)
  local counts, rows = {}, {}
  for index = 1, #queues do
    local queue, dead = queues[index], ctx.prefix .. Keys.DEAD .. queues[index]
    local letters = redis.call("ZCARD", dead)
    if letters > 0 then counts[#counts + 1], counts[#counts + 2] = queue, letters end
    if only == "" or only == queue then
      local wanted = most - #rows
      if wanted > 0 and skipped < letters then
        Find.add_rows(ctx, redis.call("ZRANGE", dead, skipped, skipped + wanted - 1, "REV"), rows)
      end
      skipped = math.max(0, skipped - letters)
    end
  end
  table.insert(rows, 1, counts)
  return rows
end)
