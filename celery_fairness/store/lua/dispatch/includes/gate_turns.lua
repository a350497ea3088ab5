--[[
  gate_turns: whose turn it is of the tenants that have parked tasks at a place.

  `gate_at:TENANT PLACE` has the tasks of a tenant there in the order of SEQ, `gate_turns:PLACE` its tenants in
  that of the key's own virtual time (`gate_virtual`); of equal ones the one whose first task waits longest
  is before, whose SEQ is in its name there. `gate_finish:KEY` has who is ahead of that time.

  A tenant begins to wait at the larger of its own finish and the key's time: no credit for having been
  away, no debt forgiven. What is given to be published again charges its tenant, at every key of the task
  at which anybody waits, one divided by its weight. Where nobody waits at a key its time begins anew.
]]

-- Places of one key that one call looks at; where there are more the others come with the next.
local PLACES_AT_MOST = 8
-- Debts that one start clears away.
local CLEAR_DEBTS_AT_MOST = 4

local function key_of_place(place)
  return string.match(place, "^[^|]*")
end

-- A tenant among those of a place, by its first task.
local function turn_name(tenant, seq)
  return string.format("%016.0f %s", seq, tenant)
end

local function next_start(prefix, key, tenant, virtual)
  local finish = redis.call("ZSCORE", prefix .. "gate_finish:" .. key, tenant)
  -- Somebody may have deleted the key's time.
  return math.max(tonumber(finish or 0), tonumber(virtual or 0))
end

local function first_of(prefix, tenant, place)
  local row = redis.call("ZRANGE", prefix .. "gate_at:" .. tenant .. " " .. place, 0, 0, "WITHSCORES")
  return row[1], row[2]
end

-- Takes a tenant out of its place by its first task; returns its start, nil where somebody has deleted it.
local function take_turn(prefix, tenant, seq, place)
  local turns, name = prefix .. "gate_turns:" .. place, turn_name(tenant, seq)
  local start = redis.call("ZSCORE", turns, name)
  redis.call("ZREM", turns, name)
  return tonumber(start)
end

local function move_turn(prefix, tenant, place, start)
  local _, first = first_of(prefix, tenant, place)
  if first then redis.call("ZADD", prefix .. "gate_turns:" .. place, "XX", start, turn_name(tenant, first)) end
end

-- Returns when the tenant is due next; nil where nobody waits at the key.
local function charge_turn(prefix, key, tenant, weight)
  local virtual = redis.call("HGET", prefix .. "gate_virtual", key)
  if not virtual then return end
  local debts, start = prefix .. "gate_finish:" .. key, next_start(prefix, key, tenant, virtual)
  local finish = start + 1 / weight
  redis.call("HSET", prefix .. "gate_virtual", key, start)
  redis.call("ZADD", debts, finish, tenant)
  local passed = redis.call("ZRANGEBYSCORE", debts, "-inf", start, "LIMIT", 0, CLEAR_DEBTS_AT_MOST)
  if #passed > 0 then redis.call("ZREM", debts, unpack(passed)) end
  -- Those that were looked at last, so that more places than these cost no more.
  local places = redis.call("ZRANGE", prefix .. "gate_places:" .. key, 0, 7, "REV")
  for index = 1, #places do move_turn(prefix, tenant, places[index], finish) end
  return finish
end

-- A task that could wait at these places is given to be published again.
local function charge_turns(prefix, tenant, places, weight)
  local finish = {}
  for index = 1, #places do
    local key = key_of_place(places[index])
    finish[key] = finish[key] or charge_turn(prefix, key, tenant, weight)
    if finish[key] then move_turn(prefix, tenant, places[index], finish[key]) end
  end
end

-- Another place of a task that may start, at which it is another tenant's turn; nil where there is none.
local function others_turn(prefix, task, places, at)
  local tenant = tenant_of(task.key)
  for index = 1, #places do
    local place, key = places[index], key_of_place(places[index])
    local first = redis.call("ZRANGE", prefix .. "gate_turns:" .. place, 0, 0, "WITHSCORES")
    local seq, other = string.match(first[1] or "", "^(%d+) (.*)$")
    if other and other ~= tenant and place ~= at then
      local start = next_start(prefix, key, tenant, redis.call("HGET", prefix .. "gate_virtual", key))
      local due = tonumber(first[2])
      if due < start or due == start and tonumber(seq) < tonumber(task.seq) then return place end
    end
  end
end
