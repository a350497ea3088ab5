--[[
  ends: what became of a claimed task, told with its lease and its lane as "keys rank queue". Whoever told
  all of them lets go on what waited for them (open_freed).

  Here is what most are told; again.lua has the others, and the codes that both return.
]]
--- @include "leases"
--- @include "took"

local function settle(prefix, rules, lease, verdict, lane_text)
  local row = redis.call("HGET", prefix .. "running", lease)
  local is_unbegun = string.sub(verdict, -1) == "-"
  if is_unbegun then
    verdict = string.sub(verdict, 1, -2)
    if row and rules.limited then limited().give_starts_back(prefix, row, rules) end
  end
  if not row then return rare().settle_late(prefix, rules, lease, verdict, lane_text) end
  if verdict == "done" then
    if rules.watched then rare().tell_ended(prefix, row, verdict, rules) end
    local tag, _, keys, kind, since = charged_by(row)
    if not is_unbegun then note_took(rules, kind, since) end
    redis.call("SREM", prefix .. "known", tag)
    end_lease(prefix, lease, keys, rules)
    freed(keys, rules)
    return 1
  end
  local owner, state, queue, record, since = read_running(row)
  if verdict == "begun" or verdict == "acked" then
    if state == "acked" then return 1 end
    redis.call("HSET", prefix .. "running", lease, write_running(owner, verdict, queue, record, since))
    return 1
  end
  return rare().end_otherwise(prefix, rules, lease, verdict, row)
end
