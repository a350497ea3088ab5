--[[
  heads: which part of a tenant's lanes a claim takes from, where it does not take every kind.
]]
--- @include "passing"
--- @include "waiting"

-- Sets heads aside. Returns whether the next one is taken; nil: no move is left.
local function head_is_taken(prefix, queue, key, lane, look)
  for _ = 0, PASSED_AT_MOST do
    local head = redis.call("LINDEX", prefix .. list_name(key, lane, queue), 0)
    if not head then return false end
    if not look.never[read_record(head).kind] then return true end
    if look.moves == 0 then return nil end
    look.moves = look.moves - 1
    local task, message = read_record(pop_part(prefix, queue, key, lane))
    place_back(prefix, queue, task, message)
  end
end

-- The first part whose head is taken, and whether there are others. Returns nil where there is none,
-- or neither a move nor a lane is left.
local function open_part(prefix, queue, key, look, rules)
  -- There are more only where a tenant has so many lanes.
  local parts = redis.call("ZRANGE", prefix .. order_name(key, nil, queue), 0, 1023)
  local moves = look.moves
  for index = 1, #parts do
    local part = parts[index]
    local lane, kind = read_part(part)
    local taken = kind and not look.never[kind]
    if look.is_local and limited().full_here(prefix, lane, look, rules) then
      if look.lanes == 0 then return nil end
      look.lanes = look.lanes - 1
      taken = false
    elseif not kind then taken = head_is_taken(prefix, queue, key, part, look) end
    if taken then return part, #parts > 1 or look.moves < moves end
    if taken == nil then return nil end
  end
end
