--[[
  gate: a task that a gate has parked waits at one place or is being published, and its tenant has its turn there.
]]

function Gate.task(it, _, tag)
  local ctx = it.ctx
  local record = redis.call("HGET", ctx.prefix .. "gate_tasks", tag)
  if not record then return end
  local task = Parked.read_parked(record)
  local tenant, places, at = Events.tenant_of(task.key), Parked.parked_places(task.key, task.words), {}
  for index = 1, #places do
    if redis.call("ZSCORE", ctx.prefix .. "gate_at:" .. tenant .. " " .. places[index], tag) then at[#at + 1] = places[index] end
  end
  -- If its worker does not publish a promoted task, the next promotion lets it wait at one place again.
  if #at == 1 or redis.call("ZSCORE", ctx.prefix .. "gate_promoted", tag) then return end
  Check.found(it, "parked_task_lost", "gate_tasks", tag, function()
    for index = 1, #at do Parked.leave_place(ctx, tenant, tag, at[index]) end
    Parked.wait_at(ctx, task, tag, places[1], it.rules.logical)
    Parked.ring_gate(ctx)
  end)
end

function Gate.tag(it, name, tag)
  local ctx, tenant, place = it.ctx, string.match(name, "^(%S+) (.*)$")
  if redis.call("HEXISTS", ctx.prefix .. "gate_tasks", tag) == 1 then return end
  if not redis.call("ZSCORE", ctx.prefix .. "gate_at:" .. name, tag) then return end
  Check.found(it, "parked_without_message", "gate_at:" .. name, tag, function()
    Parked.leave_place(ctx, tenant, tag, place)
    redis.call("ZREM", ctx.prefix .. "gate_expires", tag)
  end)
end

function Gate.turn(it, name)
  local ctx, tenant, place = it.ctx, string.match(name, "^(%S+) (.*)$")
  local key, _, seq = Parked.key_of_place(place), Parked.first_at(ctx, tenant, place)
  if not seq then return end
  local turns, turn = ctx.prefix .. "gate_turns:" .. place, Parked.turn_name(tenant, seq)
  if redis.call("ZSCORE", turns, turn) and redis.call("ZSCORE", ctx.prefix .. "gate_places:" .. key, place)
    and redis.call("ZSCORE", ctx.prefix .. "gate_looks", key) then return end
  Check.found(it, "parked_without_turn", "gate_at:" .. name, "", function()
    redis.call("HSETNX", ctx.prefix .. "gate_virtual", key, 0)
    local start = Parked.next_start(ctx, key, tenant, redis.call("HGET", ctx.prefix .. "gate_virtual", key))
    redis.call("ZADD", turns, "NX", start, turn)
    redis.call("ZADD", ctx.prefix .. "gate_places:" .. key, "NX", 0, place)
    Parked.look_at_gate(ctx, key, it.rules.logical)
    Parked.ring_gate(ctx)
  end)
end

function Gate.tenant(it, place, turn)
  local ctx = it.ctx
  local turns, seq, tenant = ctx.prefix .. "gate_turns:" .. place, string.match(turn, "^(%d+) (.*)$")
  if not redis.call("ZSCORE", turns, turn) then return end
  local _, first = Parked.first_at(ctx, tenant, place)
  if first and tonumber(first) == tonumber(seq) then return end
  Check.found(it, "wait_without_task", "gate_turns:" .. place, turn, function()
    redis.call("ZREM", turns, turn)
    Parked.forget_empty(ctx, place)
  end)
end
