--[[
  supersede: a refused copy was published again; from now on the new copy counts.

  Nothing changes where another copy has started or has taken the place meanwhile: then the new one
  is the one that is dropped when it asks.

  KEYS[1] copy     hash  current, admitted

  ARGV[1] old      str   serial of the copy that was refused
  ARGV[2] new      str   serial of the copy that is on the broker now
  ARGV[3] keep_ms  int   how long the memory is kept, at least the new copy's countdown

  Returns code.
    1 CURRENT   0 NOT_CURRENT
]]
local copy, old, new, keep_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

local kept = redis.call("HMGET", copy, "current", "admitted")
if kept[2] or (kept[1] and kept[1] ~= old) then return 0 end
redis.call("HSET", copy, "current", new)
redis.call("PEXPIRE", copy, keep_ms)
return 1
