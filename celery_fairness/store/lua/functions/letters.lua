--[[
  letters: a page of the dead letters of a queue, the newest first. The function writes nothing.

  args[1]  queue   str  whose dead letters
  args[2]  first   int  how many are left out
  args[3]  most    int  how many are returned at most

  Returns rows as `find` does.
]]
register("letters", {"no-writes"}, function(keys, args)
  local ctx, first = {prefix = keys[1]}, tonumber(args[2])
  local tags = redis.call("ZRANGE", ctx.prefix .. "dead:" .. args[1], first, first + tonumber(args[3]) - 1, "REV")
  return Find.add_rows(ctx, tags, {})
end)
