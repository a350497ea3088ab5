--[[
  charging: what a task charges its tenant.
]]

-- A charge too small to move a tenant would let it run for ever, one without an end would stop it for
-- ever.
local LEAST_CHARGE, LARGEST_CHARGE = 1e-6, 1e6

local function charge_of(cost, weight)
  local charge = cost / weight
  -- Neither comparison holds for what is no number.
  if not (charge > LEAST_CHARGE) then return LEAST_CHARGE end
  return math.min(charge, LARGEST_CHARGE)
end
