--[[
  lending: tasks of a tenant above its concurrency and up to its burst, for claims that find nothing else.

  A claim lends places only after all rounds of all its queues, so no task of another tenant waits for a lent place if the
  claim could have taken it. Lent tasks are a second order of their own, and not a higher concurrency.

  `lend:QUEUE` is an index of `blocked:QUEUE`. It has the tenants whose `at_limit` is MARK and of which something is ready, with
  the same starts. The parked tasks of a gate are in no such index, because a gate cannot see what else waits.

  If the clock has no `bursts`, no tenant was ever found below its burst, and no call runs a command for this.

  A claim that lends takes the tenants by their starts, also if it takes the highest rank of a queue first.
]]

-- The `at_limit` of a tenant that may be lent places. That of any other tenant at its limit is 1.
Lending.MARK = "2"

-- Returns the start of a tenant among those that may be lent places of a queue, or false.
function Lending.start_of(ctx, queue, key)
  if redis.call("HGET", ctx.prefix .. Keys.TENANT_STATE .. key, "at_limit") ~= Lending.MARK or Promotions.is_parked(queue)
    or redis.call("EXISTS", ctx.prefix .. Keys.READY .. key .. " " .. queue) == 0 then return false end
  return redis.call("ZSCORE", ctx.prefix .. Keys.BLOCKED .. queue, key)
end

-- Notes the place of a tenant again after it, its mark, or what of it is ready may have changed. If the tenant is new in the
-- index, it wakes a worker.
function Lending.note(ctx, queue, key)
  if not ctx.bursts then return end
  local start = Lending.start_of(ctx, queue, key)
  if not start then
    redis.call("ZREM", ctx.prefix .. Keys.LEND .. queue, key)
  elseif redis.call("ZADD", ctx.prefix .. Keys.LEND .. queue, start, key) == 1 then
    Active.wake_worker(ctx, queue)
  end
end

-- Sets the mark of a tenant that is at its limit. `before` is its mark until now, or false.
function Lending.mark(ctx, key, lends, before)
  if lends and not ctx.bursts then
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "bursts", 1)
    ctx.bursts = "1"
  end
  local tenant_state = ctx.prefix .. Keys.TENANT_STATE .. key
  redis.call("HSET", tenant_state, "at_limit", lends and Lending.MARK or 1)
  if (before == Lending.MARK) == (lends or false) then return end
  local fields = redis.call("HKEYS", tenant_state)
  for index = 1, #fields do
    local queue = string.match(fields[index], "^q:(.*)$")
    if queue then Lending.note(ctx, queue, key) end
  end
end

-- Returns whether tenants may be lent places of a queue.
function Lending.is_open(ctx, queue)
  return ctx.bursts and redis.call("EXISTS", ctx.prefix .. Keys.LEND .. queue) == 1
end

-- Returns the turn of the tenant that is lent a place of a queue, or nil. Tenants of which this process takes nothing stay
-- in their places. If there are more of them than a claim passes over, other processes lend to the tenants behind them.
function Lending.pick(ctx, queue, rules, budget, skips)
  local at = 0
  for _ = 0, budget.looks do
    local key = redis.call("ZRANGE", ctx.prefix .. Keys.LEND .. queue, at, at)[1]
    if not key then return nil end
    local turn = {queue = queue, key = key, is_lent = true}
    turn.start, turn.is_out = Blocked.start_of(ctx, queue, key)
    local step = Pick.check_tenant(ctx, turn, rules, budget, skips)
    if step == "take" then return turn end
    if step == "stop" then return nil end
    if step == "pass" then at = at + 1 end
  end
end
