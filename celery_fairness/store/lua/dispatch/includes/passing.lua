--[[
  passing: what one claim leaves where it is, for reasons of its own process alone.

  It is told as JSON: never, kinds that are not taken; once, kinds of which one task is taken;
  places, by queue, how many members of its ring the claim before has passed over. "" is nothing, and
  then no command is made for it.

  Whatever is passed over keeps its place for everybody else. The head of a lane that is of a kind
  that is not taken is set aside: it stands before the lane from now on, as what came back does.
]]
--- @include "lanes"

-- Tenants that one claim passes over and heads that it sets aside.
local PASSED_AT_MOST = 16

-- Returns nil where nothing is passed over.
local function read_passing(text)
  if text == "" then return nil end
  local told = cjson.decode(text)
  local look = {never = {}, once = {}, places = told.places, moves = PASSED_AT_MOST}
  local kinds = told.never
  for index = 1, #kinds do look.never[kinds[index]] = true end
  kinds = told.once
  for index = 1, #kinds do look.once[kinds[index]] = true end
  return look
end

-- Sets heads aside. Returns whether the next one is taken; nil: no move is left.
local function head_is_taken(prefix, queue, key, rank, look)
  for _ = 0, PASSED_AT_MOST do
    local head = redis.call("LINDEX", prefix .. lane_name(key, rank, queue), 0)
    if not head then return false end
    if not look.never[string.match(head, "^[^\n]* (%S*)\n")] then return true end
    if look.moves == 0 then return nil end
    look.moves = look.moves - 1
    local task, message = read_record(pop_first(prefix, queue, key, rank))
    place_task(prefix, queue, task, message, true)
  end
end

-- The first lane whose head is taken. Returns nil where there is none, or no move is left.
local function open_lane(prefix, queue, key, look)
  -- There are more only where more kinds are not taken than a program has mistakes.
  local lanes = redis.call("ZRANGE", prefix .. "ready:" .. key .. " " .. queue, 0, 63)
  for index = 1, #lanes do
    local lane = lanes[index]
    local kind = string.match(lane, "^%db (.*)$")
    local taken = kind and not look.never[kind]
    if not kind then taken = head_is_taken(prefix, queue, key, lane, look) end
    if taken then return lane end
    if taken == nil then return nil end
  end
end

-- Leaves a tenant where it is. Returns false where no move is left.
local function pass_over(look, queue)
  if look.moves == 0 then return false end
  look.moves = look.moves - 1
  look.places[queue] = (look.places[queue] or 0) + 1
  return true
end
