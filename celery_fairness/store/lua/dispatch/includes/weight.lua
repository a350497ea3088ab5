--[[
  weight: by how much one step of a claim is more than one move.

  A message that is read is more by one for each UNIT_BYTES that are full, a lane that is parked or made
  ready by one for each kind of what came back.
]]

local UNIT_BYTES = 16384

local function units_of(message)
  return math.floor(#message / UNIT_BYTES)
end

-- The last move of a claim may be more than were left.
local function weigh(turns, more)
  turns.moves = math.max(0, turns.moves - more)
end
