--[[
  unpark: note the outcome of parked tasks. If a task is not parked, the call changes nothing.

  - "published": the broker has the task again.
  - "failed": no broker takes the task, so no copy of it starts any more.
  - "cancelled": people cancelled the task. A worker gets it as if it had expired.

  A task that was promoted before can no longer be cancelled here.

  keys[1]  prefix    str  what every key of the installation begins with

  args[1]  how       str  "published", "failed" or "cancelled"
  args[2+] tags      str  what all copies of a message have in common

  Returns how many were parked.
]]
register("unpark", {"allow-oom"}, function(keys, args)
  local ctx, how = {prefix = keys[1]}, args[1]

  local parked = 0
  for index = 2, #args do
    local tag = args[index]
    local record = redis.call("HGET", ctx.prefix .. "gate_tasks", tag)
    local promoted = record and redis.call("ZSCORE", ctx.prefix .. "gate_promoted", tag)
    -- A task may have come to a gate before this call and been parked again. Then it is not on the broker, and
    -- `park` has written its copies.
    local copies = redis.call("HMGET", ctx.prefix .. "copy:" .. tag, "current", "next")
    if how == "published" and record and (promoted or copies[1] ~= copies[2]) then
      local task = Parked.read_parked(record)
      Parked.forget_record(ctx, tag)
      redis.call("ZREM", ctx.prefix .. "gate_expires", tag)
      redis.call("HDEL", ctx.prefix .. "copy:" .. tag, "tries")
      local places = Parked.parked_places(task.key, task.words)
      -- If this call comes late, the task waits at its places again. Its promises last until it comes to a gate.
      for position = 1, #places do Parked.leave_place(ctx, Events.tenant_of(task.key), tag, places[position]) end
      parked = parked + 1
    elseif promoted and how == "failed" then
      Parked.tell_parked_end(ctx, tag, record, "fairness.unpublished")
      local task = Parked.read_parked(record)
      redis.call("HDEL", ctx.prefix .. "copy:" .. tag, "tries", "admitted")
      -- No copy has this serial.
      redis.call("HSET", ctx.prefix .. "copy:" .. tag, "current", "-", "next", "-")
      Parked.forget_parked(ctx, task.key, tag, Parked.parked_places(task.key, task.words))
      parked = parked + 1
    elseif record and not promoted and how == "cancelled" then
      Parked.tell_parked_end(ctx, tag, record, "fairness.cancelled")
      redis.call("ZADD", ctx.prefix .. "gate_expires", 0, tag)
      Parked.ring_gate(ctx)
      parked = parked + 1
    end
  end
  return parked
end)
