--[[
  forget: forget starts of long ago, and cool-downs, pauses and overrides that are over, of keys that
  nobody asks about any more. Claims do it by themselves; of the gate whoever renews leases does.

  KEYS[1]  prefix     str  what every key of the installation begins with

  ARGV[1]  lease_ms   int  how long a lease lives without a renewal
  ARGV[2]  frozen_ms  str  "" in production (server TIME); set only by tests

  Returns nothing.
]]
--- @include "said"
--- @include "clock"
local prefix, lease_ms, frozen_ms = KEYS[1], tonumber(ARGV[1]), ARGV[2]

-- Keys that one call forgets.
local FORGET_AT_MOST = 64

local logical, now, _, said = read_clock(prefix .. "clock", lease_ms, frozen_ms)
if said.steered then
  end_steering(prefix, {logical = logical, now = now, enforcement = "on"}, FORGET_AT_MOST)
end
forget_idle(prefix, logical)
forget_cooled(prefix, logical, FORGET_AT_MOST)
