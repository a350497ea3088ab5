--[[
  inspect_queue: why the tasks of a queue wait, and what a free place could start now. The function writes nothing.

  args[1]  queue         str
  args[2]  lease_ms      int  how long a lease lives without a renewal
  args[3]  default_tier  str  for a tier that is not known
  args[4]  tiers         str  JSON: the concurrency (text) and the weight of each tier as the caller holds them
  args[5]  enforcement   str  "on", "observe" or "off"
  args[6]  frozen_ms     str  "" in production (server TIME); set only by tests

  Returns JSON. A field without a value is left out.
  - now       the server's time in ms
  - tenants   rows of the first active tenants in the order of their turns, then of the first blocked ones
  - limits    rows of limits at which tasks of the queue wait, those of the most tasks first
  - active, blocked  how many tenants there are

  A row of a tenant is [KEY, TIER, WEIGHT, LIMIT, HELD, WAITING, STARTABLE, STATE, SINCE]:
  - LIMIT      its concurrency now, -1 is unlimited
  - WAITING    its waiting tasks in the queue
  - STARTABLE  how many of them free places could start now
  - STATE      why no more of its tasks could start: "ready" if all could, "tier" at its tier's limit, "paused", or
               "limit" if another limit blocks them
  - SINCE      server time in ms since when its first task waits, or "" if that is not known

  A row of a limit is [KEY, WHY, WAITING]:
  - WHY      "paused", "cools", "full", "rate" or "throttle", or "" if the next claim looks at it
  - WAITING  the tasks in all queues that have a limit of this key
]]
-- One tenant takes about twenty-five microseconds, so a call takes at most four milliseconds.
local TENANTS_AT_MOST, LANES_AT_MOST, LIMITS_AT_MOST, LIMITS_SHOWN = 70, 20, 100, 20

-- Returns how many tasks of a tenant wait in lanes that no limit blocks, and the tag of the first one.
local function ready_tasks(ctx, queue, key, waiting)
  local lanes = redis.call("ZRANGE", ctx.prefix .. Lanes.order_name(key, nil, queue), 0, LANES_AT_MOST - 1)
  if #lanes == 0 then return 0, nil end
  local tag = Lanes.first_of(ctx, queue, key, lanes[1])
  if redis.call("EXISTS", ctx.prefix .. "blocked:" .. key .. " " .. queue) == 0 then return waiting, tag end
  local ready = 0
  for index = 1, #lanes do ready = ready + Lanes.length_of(ctx, queue, key, lanes[index]) end
  return ready, tag
end

-- Returns the tag of the first task of a tenant that a limit blocks.
local function first_blocked(ctx, queue, key)
  local group = Lanes.groups_of(ctx, queue, key, 0)[1]
  local lane = group and Lanes.first_lane(ctx, queue, key, group)
  return lane and Lanes.first_of(ctx, queue, key, lane)
end

local function tenant_row(it, key)
  local ctx, queue, rules = it.ctx, it.queue, it.rules
  local account = redis.call("HMGET", ctx.prefix .. "account:" .. key, "tier", "tenant", "q:" .. queue)
  local waiting, tier, limit, weight = tonumber(account[3] or 0), "", -1, 1
  if key ~= Tasks.SYSTEM then
    local tenant = account[2] or ""
    tier, limit, weight = Config.entitlement_by(ctx, "tenant:" .. tenant, account[1] or "", it.default_tier, it.tiers,
      it.read)
    limit = Config.tenant_limit(ctx, key, tenant, limit, rules)
  end
  local held = redis.call("ZCARD", ctx.prefix .. "leases:" .. key)
  local ready, tag = ready_tasks(ctx, queue, key, waiting)
  local free = (limit < 0 or rules.enforcement ~= "on") and math.huge or math.max(0, limit - held)
  local startable, state = math.min(ready, free), "ready"
  if limit == 0 then
    startable, state = 0, "paused"
  elseif startable < ready then
    state = "tier"
  elseif ready < waiting then
    state = "limit"
  end
  local task = Tasks.read(ctx, tag or first_blocked(ctx, queue, key) or "")
  local since = task and string.match(task.put, "^%d+") or ""
  return {key, tier, weight, limit, held, waiting, startable, state, since}
end

local function limit_rows(it)
  local ctx, rules = it.ctx, it.rules
  local candidates = ctx.prefix .. "candidates:" .. it.queue
  local names, rows = redis.call("ZRANGE", candidates, 0, LIMITS_AT_MOST - 1), {}
  for index = 1, #names do
    local limit = Limits.give_own(ctx, Limits.read_limit(names[index]), rules)
    Config.replace(limit, Config.override_of(ctx, limit.key, rules))
    local _, _, why = Limits.wait_ms(ctx, limit, rules)
    local waiting = redis.call("HGET", ctx.prefix .. "waiting_at", limit.key)
      or limit.key == "queue:" .. it.queue and redis.call("HGET", ctx.prefix .. "waiting", it.queue)
    rows[index] = {limit.key, why or "", tonumber(waiting or 0)}
  end
  table.sort(rows, function(one, other) return one[3] > other[3] or one[3] == other[3] and one[1] < other[1] end)
  for index = #rows, LIMITS_SHOWN + 1, -1 do rows[index] = nil end
  return rows
end

register("inspect_queue", {"no-writes"}, function(keys, args)
  local ctx, queue, lease_ms, frozen_ms = {prefix = keys[1]}, args[1], tonumber(args[2]), args[6]
  local logical, now = Clock.read_clock(ctx, lease_ms, frozen_ms)
  local it = {ctx = ctx, queue = queue, default_tier = args[3], tiers = cjson.decode(args[4]), read = {},
    rules = {logical = logical, now = now, enforcement = args[5]}}
  local tenants, answer = {}, {now = now}
  for _, table_name in ipairs({"ring:", "full:"}) do
    local some = redis.call("ZRANGE", ctx.prefix .. table_name .. queue, 0, TENANTS_AT_MOST - 1)
    for index = 1, #some do tenants[#tenants + 1] = tenant_row(it, some[index]) end
  end
  local limits = limit_rows(it)
  answer.active = redis.call("ZCARD", ctx.prefix .. "ring:" .. queue)
  answer.blocked = redis.call("ZCARD", ctx.prefix .. "full:" .. queue)
  answer.tenants, answer.limits = #tenants > 0 and tenants or nil, #limits > 0 and limits or nil
  return cjson.encode(answer)
end)
