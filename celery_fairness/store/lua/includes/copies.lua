--[[
  Which copy of a message may run.

  A refused task is published again, as a copy with a serial of its own. A broker whose connection
  was cut may hold the old copy and the new one, or two new ones. The hash `copy` remembers
    current   the serial that was refused last
    next      the serial that its refusal publishes; noted before it is published, because a note
              that came later could be lost, and the task with it
    admitted  the serial of the copy that started
    seq       since when it waits, where it was parked (dispatch/park_message.lua)
  and of all copies one starts: the admitted one while there is one, else the current or the next.
  A refusal forgets the next of the refusal before. The same serial delivered again (its worker
  died) is not a second copy.

  A message that was never refused has no hash: the first write is a refusal's. The hash is kept
  for keep_ms, in which a broker delivers what was not acknowledged again.
]]

-- Whether a copy may not run, and since when its message waits where it was parked.
local function superseded(copy, message, serial)
  if message == "" then return false end
  local kept = redis.call("HMGET", copy, "current", "next", "admitted", "seq")
  if kept[3] then return kept[3] ~= serial, kept[4] end
  return kept[1] and kept[1] ~= serial and kept[2] ~= serial, kept[4]
end

local function copy_refused(copy, message, serial, next_serial, keep_ms)
  if message == "" then return end
  redis.call("HDEL", copy, "admitted")
  redis.call("HSET", copy, "current", serial, "next", next_serial)
  redis.call("PEXPIRE", copy, keep_ms)
end

local function copy_admitted(copy, message, serial, keep_ms)
  if message == "" then return end
  if serial == "" and redis.call("EXISTS", copy) == 0 then return end
  redis.call("HSET", copy, "admitted", serial)
  redis.call("PEXPIRE", copy, keep_ms)
end
