--[[
  due: what the time has brought: a claim does a bounded part of it before it looks for tasks.
]]
--- @include "leases"
--- @include "later"

-- Moves of each kind that one call makes.
local DUE_AT_MOST = 16

-- Ends leases that nobody renewed, and what people said for a time; judges tenants that were found full
-- before the last news; looks at limits whose time came; brings in the tasks whose time came, and ends
-- those that have expired.
-- Returns whether there is more, and how long no task of the queues is due, at most `longest`.
local function do_what_is_due(prefix, queues, rules, longest)
  local more = rules.steered
    and limited().end_steering(prefix, rules, DUE_AT_MOST) == DUE_AT_MOST
  more = expire(prefix, rules, DUE_AT_MOST) == DUE_AT_MOST or more
  more = judge_anew(prefix, rules, DUE_AT_MOST) == DUE_AT_MOST or more
  if rules.limited then
    more = limited().look_at_limits(prefix, rules, DUE_AT_MOST) == DUE_AT_MOST or more
  end
  if rules.limited and rules.enforcement ~= "on" then
    for index = 1, #queues do
      more = limited().open_all(prefix, queues[index], rules, DUE_AT_MOST) == DUE_AT_MOST or more
    end
  end
  if rules.queued then more = limited().look_anew(prefix, queues, rules, DUE_AT_MOST) or more end
  longest = bring_in_all(prefix, queues, rules, DUE_AT_MOST, longest)
  if rules.expiring then more = rare().end_expired(prefix, queues, rules, DUE_AT_MOST) or more end
  return more, longest
end

-- Returns how long nothing opens by itself, at most `longest`.
local function opens_ms(prefix, rules, longest)
  local opens = rules.limited and redis.call("ZRANGE", prefix .. "opens", 0, 0, "WITHSCORES")[2]
  if opens then longest = math.min(longest, math.ceil(tonumber(opens) - rules.logical)) end
  if rules.steered then longest = limited().steering_ends_ms(prefix, rules.now, longest) end
  return math.max(0, longest)
end
