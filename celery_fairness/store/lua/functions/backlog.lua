--[[
  backlog: why the tasks of some queues wait, and what free places could start now. The function writes nothing.

  The argument is a JSON object:
  lease_ms      how long a lease lives without a renewal
  default_tier  for a tier that is not known
  tiers         numbers of each tier as the caller holds them, as a text (numbers.lua)
  enforcement   "on", "observe" or "off"
  frozen_ms     "" in production (server TIME); set only by tests
  queues        [QUEUE, TENANTS] rows: the name of a queue, and how many of its tenants the call checks

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

register_json("backlog", {"no-writes"}, function(ctx, wanted)
  local it, rows = Backlog.begin(ctx, wanted), {}
  for index = 1, #wanted.queues do
    if it.lanes >= Backlog.LANES_AT_MOST then break end
    local queue, tenants = unpack(wanted.queues[index])
    rows[index] = queue_row(it, queue, math.min(TENANTS_AT_MOST, tenants))
  end
  return {now = it.rules.now, queues = rows}
end)
