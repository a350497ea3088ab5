--[[
  closed: a limit beside the tier's refuses the first task of a part.
]]
--- @include "blocking"
--- @include "why_closed"

local function block_by_limit(prefix, queue, key, part, limit, rules)
  local task, message, tag = first_untold(prefix, queue, key, part)
  if not task then return end
  tell_blocked(prefix, queue, task, message, why_closed(prefix, limit, rules))
  mark_first(prefix, queue, key, part, task, message, tag)
end
