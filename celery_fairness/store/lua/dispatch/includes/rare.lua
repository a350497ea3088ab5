--[[
  rare: what most claims do not need: what waits again, and what a process passes over.
]]
--- @include "again"
--- @include "blocking"
--- @include "heads"
