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

  `backlog.lua` describes the row of a tenant.

  A row of a limit is [KEY, WHY, WAITING]:
  - WHY      "paused", "cools", "full", "rate" or "throttle", or "" if the next claim looks at it
  - WAITING  the tasks in all queues that have a limit of this key
]]
-- One tenant takes about twenty-five microseconds, so a call takes at most four milliseconds.
local TENANTS_AT_MOST, LIMITS_AT_MOST, LIMITS_SHOWN = 70, 100, 20

local function limit_rows(ctx, queue, rules)
  local candidates = ctx.prefix .. "available:" .. queue
  local names, rows = redis.call("ZRANGE", candidates, 0, LIMITS_AT_MOST - 1), {}
  for index = 1, #names do
    local limit = Limits.give_own(ctx, Limits.read_limit(names[index]), rules)
    Config.replace(limit, Config.override_of(ctx, limit.key, rules))
    local _, _, why = Limits.wait_ms(ctx, limit, rules)
    local waiting = redis.call("HGET", ctx.prefix .. "waiting_at", limit.key)
      or limit.key == "queue:" .. queue and redis.call("HGET", ctx.prefix .. "waiting", queue)
    rows[index] = {limit.key, why or "", tonumber(waiting or 0)}
  end
  table.sort(rows, function(one, other) return one[3] > other[3] or one[3] == other[3] and one[1] < other[1] end)
  for index = #rows, LIMITS_SHOWN + 1, -1 do rows[index] = nil end
  return rows
end

register("inspect_queue", {"no-writes"}, function(keys, args)
  local ctx, queue = {prefix = keys[1]}, args[1]
  local it = Backlog.begin(ctx, tonumber(args[2]), args[6], args[3], cjson.decode(args[4]), args[5])
  local tenants, answer = {}, {now = it.rules.now}
  for _, table_name in ipairs({"active:", "blocked:"}) do
    local some = redis.call("ZRANGE", ctx.prefix .. table_name .. queue, 0, TENANTS_AT_MOST - 1)
    for index = 1, #some do tenants[#tenants + 1] = Backlog.tenant_row(it, queue, some[index]) end
  end
  local limits = limit_rows(ctx, queue, it.rules)
  answer.active = redis.call("ZCARD", ctx.prefix .. "active:" .. queue)
  answer.blocked = redis.call("ZCARD", ctx.prefix .. "blocked:" .. queue)
  answer.tenants, answer.limits = #tenants > 0 and tenants or nil, #limits > 0 and limits or nil
  return cjson.encode(answer)
end)
