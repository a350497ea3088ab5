--[[
  backlog: why the tasks of some queues wait, and what free places could start now. The function writes nothing.

  args[1]  lease_ms      int  how long a lease lives without a renewal
  args[2]  default_tier  str  for a tier that is not known
  args[3]  tiers         str  JSON: the concurrency (text) and the weight of each tier as the caller holds them
  args[4]  enforcement   str  "on", "observe" or "off"
  args[5]  frozen_ms     str  "" in production (server TIME); set only by tests
  args[6+] pairs         any  the name of a queue, then how many of its tenants the call checks

  If a queue has more tenants, the call checks some at random. It checks active and blocked ones in equal parts, as
  far as there are so many. If their lanes are more than a call looks at, it checks fewer tenants.

  Returns JSON.
  - now     the server's time in ms
  - queues  rows [QUEUE, ACTIVE, BLOCKED, OF_ACTIVE, OF_BLOCKED] of the queues that were checked, in the order of the
            arguments. ACTIVE and BLOCKED say how many tenants there are. The others are rows of tenants (backlog.lua), or
            empty objects.
]]
-- One queue checks at most this many tenants. One tenant takes about twenty microseconds with its first lane.
local TENANTS_AT_MOST = 60

-- Returns all members of a table that has `total` of them, in the order of their turns, in which they share free slots. If
-- there are more members, it returns `most` at random.
local function some_of(name, total, most)
  if total <= most then return redis.call("ZRANGE", name, 0, -1) end
  return redis.call("ZRANDMEMBER", name, most)
end

local function queue_row(it, queue, most)
  local active_key, blocked_key = it.ctx.prefix .. Keys.ACTIVE .. queue, it.ctx.prefix .. Keys.BLOCKED .. queue
  local active, blocked = redis.call("ZCARD", active_key), redis.call("ZCARD", blocked_key)
  local half = math.ceil(most / 2)
  local of_active = math.min(active, math.max(half, most - blocked))
  return {queue, active, blocked, Backlog.rows_of(it, queue, some_of(active_key, active, of_active),
    some_of(blocked_key, blocked, most - of_active))}
end

register("backlog", {"no-writes"}, function(keys, args)
  local it = Backlog.begin({prefix = keys[1]}, tonumber(args[1]), args[5], args[2], cjson.decode(args[3]), args[4])
  local rows = {}
  for index = 6, #args, 2 do
    if it.lanes >= Backlog.LANES_AT_MOST then break end
    rows[#rows + 1] = queue_row(it, args[index], math.min(TENANTS_AT_MOST, tonumber(args[index + 1])))
  end
  return cjson.encode({now = it.rules.now, queues = rows})
end)
