--[[
  supersede: a refused copy is about to be published once more, under another serial, because nobody
  knows whether the first try arrived. From now on the first try does not count.

  Where another copy has started, or the first try did arrive and was refused in its turn, nothing
  changes and nothing need be published.

  keys[1] prefix  str  what every key of the installation begins with

  args[1] message str  whose copies
  args[2] serial  str  of the copy that was refused
  args[3] next    str  of the copy that is about to be published

  Returns code.
    1 PUBLISH   0 OVERTAKEN
]]
register("supersede", {"allow-oom"}, function(keys, args)
  local copy, serial, next_serial = keys[1] .. "copy:" .. args[1], args[2], args[3]

  local kept = redis.call("HMGET", copy, "current", "admitted")
  if kept[2] or (kept[1] and kept[1] ~= serial) then return 0 end
  if kept[1] then redis.call("HSET", copy, "next", next_serial) end
  return 1
end)
