--[[
  supersede: a rejected copy is published once more under another serial, soon after this call.

  The caller does so if the first try to publish may not have arrived. From now on the first try does not count.

  If another copy has started, nothing changes and the caller publishes nothing. The same holds if the first try
  arrived and was rejected in its turn.

  args[1] message str  whose copies
  args[2] serial  str  of the copy that was rejected
  args[3] next    str  of the copy that the caller publishes after this call

  Returns a code.
    1 PUBLISH   0 OVERTAKEN
]]
register("supersede", {"allow-oom"}, function(keys, args)
  local copy, serial, next_serial = keys[1] .. Keys.COPY .. args[1], args[2], args[3]

  local kept = redis.call("HMGET", copy, "current", "admitted")
  if kept[2] or (kept[1] and kept[1] ~= serial) then return 0 end
  if kept[1] then redis.call("HSET", copy, "next", next_serial) end
  return 1
end)
