--[[
  promote: give a worker parked tasks that may start by now. The worker publishes them again.

  At each key, the first task of the tenant whose turn it is comes first. Each task is promised its starts for one
  lease. If its worker does not confirm within the lease that the broker has it, the next caller gets it.

  A task that expired is given too, even if its limits are closed. The worker that receives it ends it.

  keys[1]  prefix        str  what every key of the installation begins with

  args[1]  lease_ms      int  how long a lease lives without a renewal
  args[2]  enforcement   str  "on"; with another value no task stays parked
  args[3]  default_tier  str  for a tier that is not known
  args[4]  default_limit str  of the default tier, an integer or "unlimited"
  args[5]  tier_waits    str  "1" if a task over its tier's limit waits here
  args[6]  want          int  most tasks
  args[7]  next_serial   str  the published copies have this and a number after it
  args[8]  keep_ms       int  how long the memory of copies is kept
  args[9]  broker        str  to which the caller publishes; "" is any
  args[10] frozen_ms     str  "" in production (server TIME); set only by tests

  Returns {sleep_ms, tag, serial, ended, message, ...}, with four values for each task.
  - sleep_ms is the time until the next call.
  - sleep_ms is -1 if nothing is parked, and -2 if the parked tasks came from another broker.
  - ended is "1" if the worker that receives the task must end it.
]]
-- One call looks at most at this many promotions whose worker died, keys, and tasks of one key.
local SWEEP_AT_MOST, KEYS_AT_MOST, TASKS_AT_MOST = 16, 16, 8

register("promote", {"allow-oom"}, function(keys, args)
  local ctx, lease_ms, enforcement = {prefix = keys[1]}, tonumber(args[1]), args[2]
  local default_tier, default_limit, tier_waits = args[3], args[4], args[5]
  local want, next_serial, keep_ms = tonumber(args[6]), args[7], tonumber(args[8])
  local broker, frozen_ms = args[9], args[10]

  local logical, now, _, said = Clock.tick(ctx, lease_ms, frozen_ms)
  if not said.parked then return {-1} end
  if not Parked.is_of_broker(said, broker) then return {-2} end
  local rules = {logical = logical, now = now, enforcement = enforcement, steered = said.steered, ahead = true,
    promotes = true, tier_waits = tier_waits == "1", default_tier = default_tier, default_limit = default_limit}
  local answer = {0}

  local function parked_task(tag)
    local record = redis.call("HGET", ctx.prefix .. "gate_tasks", tag)
    if not record then return nil end
    local task = Parked.read_parked(record)
    task.record, task.places = record, Parked.parked_places(task.key, task.words)
    return task
  end

  local function give(tag, task, promises, ended)
    local copy, serial = ctx.prefix .. "copy:" .. tag, next_serial .. Rates.whole(#answer)
    local published = redis.call("HGET", copy, "next") or serial
    Parked.leave_gate(ctx, task.key, tag, task.places)
    Parked.copy_parked(ctx, tag, published, serial, task.seq, task.told, keep_ms)
    redis.call("ZREM", ctx.prefix .. "gate_expires", tag)
    redis.call("ZADD", ctx.prefix .. "gate_promoted", Rates.whole(logical + lease_ms), tag)
    if promises then
      local _, weight = Parked.entitled(ctx, task, rules)
      Parked.charge_turns(ctx, Events.tenant_of(task.key), task.places, weight)
      Parked.promise_starts(ctx, tag, rules.tier_waits and task.key or "", task.words, rules, lease_ms, keep_ms)
    end
    answer[#answer + 1] = tag
    answer[#answer + 1] = serial
    answer[#answer + 1] = (ended or task.expires == "0") and "1" or ""
    answer[#answer + 1] = string.match(task.record, "\n(.*)$")
  end

  local over = redis.call(
    "ZRANGEBYSCORE", ctx.prefix .. "gate_promoted", "-inf", Rates.whole(logical), "LIMIT", 0, SWEEP_AT_MOST)
  for index = 1, #over do
    local task = parked_task(over[index])
    redis.call("ZREM", ctx.prefix .. "gate_promoted", over[index])
    if task then
      Parked.leave_gate(ctx, task.key, over[index], task.places)
      if task.expires ~= "" then redis.call("ZADD", ctx.prefix .. "gate_expires", task.expires, over[index]) end
      Parked.wait_at(ctx, task, over[index], task.places[1], 0)
    end
  end

  local expired = redis.call(
    "ZRANGEBYSCORE", ctx.prefix .. "gate_expires", "-inf", Rates.whole(now), "LIMIT", 0, want)
  for index = 1, #expired do
    local task = parked_task(expired[index])
    if task then
      Parked.tell_parked_end(ctx, expired[index], task.record, "fairness.expired")
      give(expired[index], task, false, true)
    else
      -- The record was deleted.
      redis.call("ZREM", ctx.prefix .. "gate_expires", expired[index])
    end
  end

  local moved = {}
  -- Gives the tasks that wait at a key and may start. Returns when the key is looked at again. It returns nil if no
  -- task waits there any more.
  local function look_at_key(key, since)
    local heads, more = Parked.heads_of(ctx, key, since, logical)
    local again, looks = more and since or math.huge, 0
    -- Each pass closes a place, looks at a task or is the last.
    for _ = 0, TASKS_AT_MOST + Parked.PLACES_AT_MOST do
      local head = Parked.first_head(ctx, heads)
      if not head then return again < math.huge and again or nil end
      if looks == TASKS_AT_MOST or #answer > 4 * want then return math.min(again, logical) end
      local task, at, closed_ms = head.tag and parked_task(head.tag), nil, nil
      if task and enforcement == "on" then
        at, closed_ms = Parked.kept_by(ctx, task, Limits.limits_now(ctx, task.words, rules), rules)
      end
      if task and enforcement == "on" and not at and not moved[head.tag] then
        -- The task goes to a place at which it is another tenant's turn, so that this tenant comes first. It goes
        -- there once per call.
        at, closed_ms = Parked.others_turn(ctx, task, task.places, head.place), 0
        moved[head.tag] = at
      end
      local open_at = at and logical + math.min(closed_ms, Limits.LOOK_AT_LIMIT_MS)
      if at and Parked.key_of_place(at) == key then again = math.min(again, open_at) end
      if at == head.place then
        head.closed = true
      elseif task and not at then
        give(head.tag, task, enforcement == "on")
      elseif head.tag then
        -- A task without a record has come to a gate since, with other limits.
        Parked.leave_place(ctx, head.tenant, head.tag, head.place)
        if at then Parked.wait_at(ctx, task, head.tag, at, open_at) end
      end
      if not head.closed then looks = looks + 1 end
    end
  end

  local due = redis.call("ZRANGEBYSCORE", ctx.prefix .. "gate_looks", "-inf", Rates.whole(logical), "WITHSCORES",
    "LIMIT", 0, KEYS_AT_MOST)
  for index = 1, #due, 2 do
    local again = look_at_key(due[index], tonumber(due[index + 1]))
    if again then
      redis.call("ZADD", ctx.prefix .. "gate_looks", Rates.whole(again), due[index])
    else
      redis.call("ZREM", ctx.prefix .. "gate_looks", due[index])
    end
  end

  -- The longest sleep also bounds how late a call finds old promotions and expired tasks.
  local first = redis.call("ZRANGE", ctx.prefix .. "gate_looks", 0, 0, "WITHSCORES")[2]
  local sleep_ms = first and math.min(tonumber(first) - logical, Limits.LOOK_AT_LIMIT_MS) or Limits.LOOK_AT_LIMIT_MS
  answer[1] = math.max(0, math.ceil(sleep_ms))
  if answer[1] == 0 then Parked.ring_gate(ctx) end
  if not Parked.still_parked(ctx) then answer[1] = -1 end
  return answer
end)
