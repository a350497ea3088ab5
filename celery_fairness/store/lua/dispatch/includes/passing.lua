--[[
  passing: what one claim leaves where it is, for reasons of its own process alone.

  It is told as JSON: never, kinds that are not taken; once, kinds of which one task is taken;
  places, by queue, how many members of its ring the claim before has passed over; held, by key, how
  many slots of limits of queues it holds; rooms and lends, its shares, and strict (rounds.lua). "" is nothing.
  Where no kind is passed over, and no queue says how many slots one process may hold (`is_local`), no
  command is made for it.

  Whatever is passed over keeps its place for everybody else. The head of a lane that is of a kind
  that is not taken is set aside: it stands before the lane from now on, as what came back does.
]]
--- @include "taking"

-- Tenants that one claim passes over and heads that it sets aside; lanes that its process is full of.
local PASSED_AT_MOST = 16
local FULL_LANES_AT_MOST = 128

-- Returns nil where nothing is passed over; and all that it was told.
local function read_passing(text, is_local)
  local told = text == "" and {never = {}, once = {}, places = {}, held = {}, rooms = {}} or cjson.decode(text)
  if not is_local and #told.never + #told.once == 0 then return nil, told end
  local look = {never = {}, once = {}, places = told.places, held = told.held, is_local = is_local,
    moves = PASSED_AT_MOST, lanes = FULL_LANES_AT_MOST}
  local kinds = told.never
  for index = 1, #kinds do look.never[kinds[index]] = true end
  kinds = told.once
  for index = 1, #kinds do look.once[kinds[index]] = true end
  return look, told
end

-- A task was taken.
local function took(look, task)
  if look.once[task.kind] then look.never[task.kind] = true end
  local keys = keys_of(task.key, task.limits)
  for key in string.gmatch(keys, "[^,]+") do
    look.held[key] = (look.held[key] or 0) + 1
  end
end

-- Takes one move. Returns false where none is left.
local function spend_pass(look)
  if look.moves == 0 then return false end
  look.moves = look.moves - 1
  return true
end

-- Leaves a tenant where it is. Returns false where no move is left.
local function pass_over(look, queue)
  if not spend_pass(look) then return false end
  look.places[queue] = (look.places[queue] or 0) + 1
  return true
end
