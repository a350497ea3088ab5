--[[
  gate_kept: what keeps a task of a gate from starting now.
]]
--- @include "entitlement"
--- @include "limits"
--- @include "gate_parked"

-- How many tasks a parked task's tenant may run now, -1 is any number; and its weight.
local function entitled(prefix, task, rules)
  if task.key == "" then return -1, 1 end
  local _, most, weight = entitlement(prefix .. "tiers", prefix .. task.tenant_key, task.tier,
    task.concurrency, rules.default_tier, rules.default_limit, {})
  return most, weight
end

-- The place at which a task waits, nil where all lets it through; how long that is closed; and whether a
-- limit refuses it that does not say "wait".
local function kept_by(prefix, task, limits, rules)
  local at, closed_ms, others = nil, 0, false
  if rules.tier_waits and task.key ~= "" then
    local most = entitled(prefix, task, rules)
    if rules.steered then
      most = tenant_limit(prefix, task.key, string.match(task.tenant_key, ":(.*)$"), most, rules)
    end
    local held = redis.call("ZCOUNT", prefix .. "leases:" .. task.key, "(" .. whole(rules.logical), "+inf")
    if most >= 0 and held + promised(prefix, task.key, rules) >= most then
      at, closed_ms = task.key, LOOK_AT_LIMIT_MS
    end
  end
  for index = 1, #limits do
    local limit = limits[index]
    local wait = wait_ms(prefix, limit, rules)
    if wait > 0 then
      if limit.on_limit ~= "w" and stopped_ms(prefix, limit, rules) == 0 then
        others = true
      elseif not at then
        at, closed_ms = limit.name, wait
      end
    end
  end
  return at, closed_ms, others
end
