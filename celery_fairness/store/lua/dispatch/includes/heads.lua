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

-- A part stands where its first task does now: it comes once more behind those that go before it. Returns
-- behind which it does.
local function place_again(prefix, order, parts, index)
  local scores = redis.call("ZMSCORE", prefix .. order, unpack(parts, index))
  local at = index
  for later = 2, #scores do
    if tonumber(scores[later]) > tonumber(scores[1]) then break end
    at = index + later - 1
  end
  if at > index then table.insert(parts, at + 1, parts[index]) end
  return at
end

-- The first part whose head is taken, and whether there are others. Returns nil where there is none,
-- or neither a move nor a lane is left.
local function open_part(prefix, queue, key, look, rules)
  -- There are more only where a tenant has so many lanes.
  local order = order_name(key, nil, queue)
  local parts = redis.call("ZRANGE", prefix .. order, 0, 1023)
  local moves = look.moves
  for index = 1, #parts + PASSED_AT_MOST do
    local part, before = parts[index], look.moves
    if not part then return nil end
    local lane, kind = read_part(part)
    local taken = kind and not look.never[kind]
    if look.is_local and limited().full_here(prefix, lane, look, rules) then
      if look.lanes == 0 then return nil end
      look.lanes = look.lanes - 1
      taken = false
    elseif not kind then taken = head_is_taken(prefix, queue, key, part, look) end
    if taken and look.moves < before and parts[index + 1] then
      -- Without what was set aside it stands further back.
      local at = place_again(prefix, order, parts, index)
      if at > index then taken = false end
    end
    if taken then return part, #parts > 1 or look.moves < moves end
    if taken == nil then return nil end
  end
end
