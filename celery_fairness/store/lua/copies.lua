--[[
  Which copy of a message may run.

  A refused task is published again, as a copy with a serial of its own. A broker whose connection
  was cut may hold the old copy and the new one, or two new ones. The hash `copy` remembers
    current   the serial that was refused last
    next      the serial that its refusal publishes; noted before it is published, because a note
              that came later could be lost, and the task with it
    admitted  the serial of the copy that started
    seq       since when it waits, where it was parked (functions/park_message.lua)
    told      what was told of its refusals (events.lua)
    tries     how often it could not be published from where it was parked (functions/put_off.lua)
  and of all copies one starts: the admitted one while there is one, else the current or the next.
  A refusal forgets the next of the refusal before. The same serial delivered again (its worker
  died) is not a second copy.

  A message that was never refused has no hash: the first write is a refusal's. The hash is kept
  for keep_ms, in which a broker delivers what was not acknowledged again.
]]

-- Whether a copy may not run, and what is remembered of its message: known, seq where it was parked,
-- told. Of one that says nothing of copies nothing is told: nobody would know it again.
function Copies.superseded(copy, message, serial)
  if message == "" then return false, {told = "-"} end
  local kept = redis.call("HMGET", copy, "current", "next", "admitted", "seq", "told")
  local current, following, admitted = kept[1], kept[2], kept[3]
  local memory = {known = current or admitted, seq = kept[4], told = kept[5] or ""}
  if admitted then return admitted ~= serial, memory end
  return current and current ~= serial and following ~= serial, memory
end

function Copies.copy_refused(copy, message, serial, next_serial, memory, keep_ms)
  if message == "" then return end
  redis.call("HDEL", copy, "admitted")
  redis.call("HSET", copy, "current", serial, "next", next_serial, "told", memory.told)
  redis.call("PEXPIRE", copy, keep_ms)
end

function Copies.copy_admitted(copy, message, serial, memory, keep_ms)
  if message == "" then return end
  if serial == "" and not memory.known then return end
  redis.call("HSET", copy, "admitted", serial, "told", memory.told)
  redis.call("PEXPIRE", copy, keep_ms)
end
