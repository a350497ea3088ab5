--[[
  inspect_queue: why the tasks of a queue wait, and what a free place could start now. The function writes nothing.

  The argument is a JSON object:
  lease_ms      how long a lease lives without a renewal
  default_tier  for a tier that is not known
  tiers         numbers of each tier as the caller holds them, as a text (numbers.lua)
  enforcement   "on", "observe" or "off"
  frozen_ms     "" in production (server TIME); set only by tests
  queue         its name
  active        index of the first active tenant of this page
  blocked       index of its first blocked tenant
  taken         what the tenants of earlier pages use up (backlog.lua)

  Returns JSON. A field without a value is left out.
  - now       the server's time in ms
  - tenants   rows of a page of the active tenants in the order of their turns, then of a page of the blocked ones
  - next      the next page: the indexes of its first active and of its first blocked tenant
  - taken     as the argument, for the next page
  - limits    rows of limits at which tasks of the queue wait, those of the most tasks first; on the first page only
  - active, blocked  how many tenants there are

  `backlog.lua` describes the row of a tenant.

  A row of a limit is [KEY, WHY, WAITING], or [KEY, WHY, WAITING, SAVING] while the key saves for a task:
  - WHY      "paused", "cools", "full", "rate" or "throttle", or "" if the next claim looks at it
  - WAITING  the tasks in all queues that have a limit of this key
  - SAVING   [NEEDS, OF, FREE, TENANT]: the task of the tenant with this key needs NEEDS of the number OF, of which FREE are
             free. It is of the concurrency if the key saves slots, otherwise of the rate with the least room
]]
-- One page has at most this many active tenants, and as many blocked ones. One tenant takes about twenty microseconds
-- with its first lane, and a limit five.
local TENANTS_AT_MOST, LIMITS_AT_MOST, LIMITS_SHOWN = 30, 100, 20

-- Returns what a key saves for a task, or nil. `limit` has its numbers now.
local function saving_of(ctx, limit, rules)
  local saved = ctx.several and Saving.of(ctx, limit.key)
  if not saved or Saving.is_over(saved, rules) then return nil end
  local most = limit.concurrency
  if saved.slots > 1 and most then
    return {math.min(saved.slots, most), most, most - Slots.held(ctx, limit.key), saved.tenant}
  end
  local found
  for starts, period_ms in Rates.windows_of(limit.rate) do
    local free = starts - Rates.count_in(Rates.read(ctx, limit.key), starts, period_ms, rules.logical)
    local needs = math.min(saved.units, starts)
    if needs > 1 and (not found or free - needs < found[3] - found[1]) then found = {needs, starts, free, saved.tenant} end
  end
  return found
end

local function limit_rows(ctx, queue, rules)
  local candidates = ctx.prefix .. Keys.AVAILABLE .. queue
  local names, rows = redis.call("ZRANGE", candidates, 0, LIMITS_AT_MOST - 1), {}
  for index = 1, #names do
    local limit = Limits.limit_now(ctx, names[index], rules)
    local _, _, why = Limits.wait_ms(ctx, limit, rules)
    local waiting = redis.call("HGET", ctx.prefix .. Keys.WAITING_AT, limit.key)
      or limit.key == "queue:" .. queue and redis.call("HGET", ctx.prefix .. Keys.WAITING, queue)
    rows[index] = {limit.key, why or "", tonumber(waiting or 0), saving_of(ctx, limit, rules)}
  end
  table.sort(rows, function(one, other) return one[3] > other[3] or one[3] == other[3] and one[1] < other[1] end)
  for index = #rows, LIMITS_SHOWN + 1, -1 do rows[index] = nil end
  return rows
end

register_json("inspect_queue", {"no-writes"}, function(ctx, wanted)
  local queue, active, blocked = wanted.queue, wanted.active, wanted.blocked
  local it = Backlog.begin(ctx, wanted)
  local active_key, blocked_key = ctx.prefix .. Keys.ACTIVE .. queue, ctx.prefix .. Keys.BLOCKED .. queue
  it.taken = wanted.taken
  local tenants, of_blocked = Backlog.rows_of(it, queue,
    redis.call("ZRANGE", active_key, active, active + TENANTS_AT_MOST - 1),
    redis.call("ZRANGE", blocked_key, blocked, blocked + TENANTS_AT_MOST - 1))
  local answer = {now = it.rules.now, next = {active + #tenants, blocked + #of_blocked}, taken = it.taken}
  for index = 1, #of_blocked do tenants[#tenants + 1] = of_blocked[index] end
  local limits = active + blocked == 0 and limit_rows(ctx, queue, it.rules) or {}
  answer.active, answer.blocked = redis.call("ZCARD", active_key), redis.call("ZCARD", blocked_key)
  answer.tenants, answer.limits = #tenants > 0 and tenants or nil, #limits > 0 and limits or nil
  return answer
end)
