--[[
  aside: move what nobody can read out of a plain list, as it is.

  KEYS[1] prefix str  what every key of the installation begins with

  ARGV[1] queue  str  whose plain list it is
  ARGV[2] plain  str  the key of that list
  ARGV[3] entry  str  what lies there

  Returns how many were moved: none where another call has moved it.
]]
local prefix, queue, plain, entry = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

-- It is the first write: Redis refuses none that comes after it, also where its memory is full.
local moved = redis.call("LREM", plain, -1, entry)
if moved > 0 then
  redis.call("RPUSH", prefix .. "aside:" .. queue, entry)
  redis.call("HINCRBY", prefix .. "counts", "aside", moved)
end
return moved
