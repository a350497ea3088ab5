--[[
  copies: which copy of a message may run.

  A rejected task is published again, as a copy with a serial of its own. If the connection of a broker was cut,
  it may hold the old copy and the new one, or two new ones. The hash `copy` holds these fields.

    current   the serial that was rejected last
    next      the serial that its rejection publishes; noted before it is published, because a note
              that came later could be lost, and the task with it
    admitted  the serial of the copy that started
    seq       its place, if it was parked (functions/park.lua)
    attempts  how often it was promoted, so that no two promotions have one name
    reported  what was reported of its rejections (events.lua)
    since     server time (ms) from which it waited when it was parked

  Only one of all copies starts. If there is an admitted copy, it is that one. Otherwise it is the current or the
  next. A rejection deletes the next of the rejection before. If the same serial is delivered again because its
  worker died, that is not a second copy.

  A message that was never rejected has no hash, because the first write is that of a rejection. The hash is kept
  for keep_ms. In that time a broker delivers a message without an acknowledgement again.
]]

-- Returns whether a copy may not run, and what is stored for its message. These are `known`, `reported`, and `seq`
-- and `since` if the message was parked. If `message` is "", no event reports the task, because no later call would
-- recognize it.
function Copies.superseded(copy, message, serial)
  if message == "" then return false, {reported = "-"} end
  local kept = redis.call("HMGET", copy, "current", "next", "admitted", "seq", "reported", "attempts", "since")
  local current, following, admitted = kept[1], kept[2], kept[3]
  local memory = {known = current or admitted, seq = kept[4], reported = kept[5] or "", attempts = kept[6] or "0",
    since = tonumber(kept[7] or "")}
  if admitted then return admitted ~= serial, memory end
  return current and current ~= serial and following ~= serial, memory
end

function Copies.copy_rejected(copy, message, serial, next_serial, memory, keep_ms)
  if message == "" then return end
  redis.call("HDEL", copy, "admitted")
  redis.call("HSET", copy, "current", serial, "next", next_serial, "reported", memory.reported)
  redis.call("PEXPIRE", copy, keep_ms)
end

function Copies.copy_admitted(copy, message, serial, memory, keep_ms)
  if message == "" then return end
  if serial == "" and not memory.known then return end
  redis.call("HSET", copy, "admitted", serial, "reported", memory.reported)
  redis.call("PEXPIRE", copy, keep_ms)
end

-- No copy of a task that waits here may run.
function Copies.copy_parked(ctx, tag, serial, seq, memory, keep_ms)
  local copy = ctx.prefix .. Keys.COPY .. tag
  redis.call("HDEL", copy, "admitted")
  redis.call("HSET", copy, "current", serial, "next", serial, "seq", seq, "reported", memory.reported)
  redis.call("PEXPIRE", copy, keep_ms)
end

-- No copy of a task that ended here may run. If the memory of its copies is over, no copy is on the broker.
function Copies.copy_ended(ctx, tag)
  local copy = ctx.prefix .. Keys.COPY .. tag
  if redis.call("EXISTS", copy) == 1 then redis.call("HSET", copy, "current", "-", "next", "-") end
end

-- The copy that a promoter publishes is the only one that may run. The task may have waited for longer than the memory
-- of its copies is kept.
function Copies.copy_promoted(ctx, task, lease, keep_ms)
  local copy = ctx.prefix .. Keys.COPY .. task.tag
  redis.call("HSET", copy, "current", lease, "next", lease, "attempts", task.attempt, "seq", Rates.int_text(task.seq),
    "reported", task.blocked, "since", string.match(task.put, "^%d*"))
  redis.call("PEXPIRE", copy, keep_ms)
end
