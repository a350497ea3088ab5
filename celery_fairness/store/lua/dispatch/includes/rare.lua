--[[
  rare: what most claims do not need: what waits again or has expired, and what a process passes over.
]]
--- @include "again"
--- @include "blocking"
--- @include "expiring"
--- @include "heads"
