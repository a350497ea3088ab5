--[[
  closed: a limit beside the tier's refuses the first task of a part.
]]
--- @include "blocking"
--- @include "why_closed"

local function block_by_limit(prefix, queue, key, part, limit, rules, turns)
  local closed = why_closed(prefix, limit, rules)
  count_exceeded(prefix .. "exceeded", closed.strategy, closed.key)
  local task, message, tag = first_of(prefix, queue, key, part)
  if not task then return end
  weigh(turns, units_of(message))
  if task.blocked ~= "" then return end
  tell_blocked(prefix, queue, task, message, closed)
  mark_first(prefix, queue, key, part, task, message, tag)
end
