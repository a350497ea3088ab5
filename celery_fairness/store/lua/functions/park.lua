--[[
  park: keep a task that a gate rejected, until its limits open. It waits in the queue of its broker (promotions.lua).

  A copy that waited before takes its old place, and its wait goes on.

  args[1]  lease_ms      int  how long a lease lives without a renewal
  args[2]  broker        str  that the message came from
  args[3]  tag           str  what all copies of the message have in common
  args[4]  serial        str  of the copy that was rejected
  args[5]  next_serial   str  one that is never published; it stands for the message here
  args[6]  keep_ms       int  how long the memory of copies is kept
  args[7]  tenant        str  as it is written in keys; "" is a system task
  args[8]  service       str  "" unless each service counts apart
  args[9]  tier          str  the tenant's tier as the caller holds it
  args[10] rank          int  0 to 9; 9 goes first
  args[11] limits        str  those beside the tier's, or ""
  args[12] job           str  "ID NAME QUEUE" of the task; QUEUE is the routing key with which it is published again
  args[13] expires_ms    str  server time from which it does not start any more, or ""
  args[14] message       str  as it is published again
  args[15] frozen_ms     str  "" in production (server TIME); set only by tests

  Returns a code.
    1 PARKED   -2 SUPERSEDED
]]
register("park", {}, function(keys, args)
  local ctx, queue = {prefix = keys[1], memo = {}, result = {}}, Promotions.queue_of(args[2])
  local tag, serial, next_serial, keep_ms, expires_ms = args[3], args[4], args[5], tonumber(args[6]), args[13]
  local logical, now, _, flags = Clock.tick(ctx, tonumber(args[1]), args[15])
  ctx.ranked = flags.ranked
  local gone, memory = Copies.superseded(ctx.prefix .. Keys.COPY .. tag, tag, serial)
  if gone then return -2 end
  local job = Events.read_job(args[12]) or Leases.UNKNOWN
  local task = {tag = tag, seq = memory.seq or Tasks.next_seq(ctx), attempt = memory.attempts,
    deaths = 0, cost = "1", rank = args[10], tenant = args[7], service = args[8], tier = args[9], name = job.name,
    limits = args[11], id = job.id, queue = queue, route = job.queue, blocked = memory.reported ~= "" and memory.reported or "-",
    put = memory.since and Rates.int_text(memory.since), key = Tasks.key_of(args[7], args[8])}
  Copies.copy_parked(ctx, tag, next_serial, Rates.int_text(task.seq), memory, keep_ms)
  -- A call that is sent again finds the task here.
  if not Tasks.add_message(ctx, task, args[14]) then return 1 end
  Tasks.add_id(ctx, task)
  if not flags.parked then redis.call("HSET", ctx.prefix .. Keys.CLOCK, "parked", 1) end
  if task.limits ~= "" and not flags.limited then redis.call("HSET", ctx.prefix .. Keys.CLOCK, "limited", 1) end
  if expires_ms ~= "" then
    redis.call("ZADD", ctx.prefix .. Keys.EXPIRES .. queue, expires_ms, tag)
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "expiring", 1)
  end
  local is_woken = redis.call("EXISTS", ctx.prefix .. Keys.WAKEUP .. queue) == 1
  Lanes.enqueue(ctx, queue, task, true, now)
  -- A newcomer must not start before this task. So its lane waits at its limit at once, as the next claim would put it.
  local rules = {logical = logical, now = now, enforcement = "on", parked = "1", limited = "1", promotes = true,
    limits = {}}
  local lane = Lanes.lane_of(task)
  if task.limits == "" or Lanes.group_of(ctx, queue, task.key, lane) then return 1 end
  local rejected = Limits.check(ctx, Lanes.first_limits(ctx, queue, task.key, lane), rules)
  if rejected and not rejected.action then
    Blocked.block(ctx, {queue = queue, key = task.key, lane = lane}, rejected, rules, {moves = 0})
    -- The task has woken a promoter. An older wake-up is for something else.
    if not is_woken then Active.wake_next(ctx, queue, true, false) end
    -- The next claim looks at the limit, which may save for the task.
    if rejected.by_amount then Saving.look_again(ctx, {rejected.key}) end
  end
  return 1
end)
