--[[
  supersede: a refused copy is about to be published once more, under another serial, because nobody
  knows whether the first try arrived. From now on the first try does not count.

  Where another copy has started, or the first try did arrive and was refused in its turn, nothing
  changes and nothing need be published.

  KEYS[1] copy   hash  current, next, admitted

  ARGV[1] serial str   of the copy that was refused
  ARGV[2] next   str   of the copy that is about to be published

  Returns code.
    1 PUBLISH   0 OVERTAKEN
]]
local copy, serial, next_serial = KEYS[1], ARGV[1], ARGV[2]

local kept = redis.call("HMGET", copy, "current", "admitted")
if kept[2] or (kept[1] and kept[1] ~= serial) then return 0 end
if kept[1] then redis.call("HSET", copy, "next", next_serial) end
return 1
