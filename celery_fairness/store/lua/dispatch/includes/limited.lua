--[[
  limited: all that only tasks with limits beside their tier's need.

  It is made where there were such tasks: `rules.limited`.
]]
--- @include "actions"
--- @include "candidates"
--- @include "said"
--- @include "take_limits"
--- @include "whole"
