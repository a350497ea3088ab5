--[[
  rounds: in which order one claim asks its queues, and how much of each its process may take.

  A process may have a share of its places for each queue; it tells what is left of each as `rooms`. In
  the first round each queue has its turn until nothing of it may start or its room is used up. In the
  second are those that left something to another queue (`turns.left`). Where places are lent, two more
  go to the queues whose room was used up before: so whoever has room goes first.

  A strict claim takes of the first queue until nothing of it may start or its room is used up, then of
  the second. If one limit keeps tasks of both, a task of the first starts: none is left to another queue
  (`turns.left` is nil).
]]

-- Begins a round with those of some queues that have room, each once.
local function begin_round(rounds, queues)
  local seen = {}
  rounds.turn, rounds.queues = 1, {}
  for index = 1, #queues do
    local queue = queues[index]
    if not seen[queue] and (rounds.rooms[queue] or 1) > 0 then rounds.queues[#rounds.queues + 1] = queue end
    seen[queue] = true
  end
end

-- `shares.rooms`: by queue, how many tasks are taken of it; of others any number.
local function begin_rounds(queues, shares, turns)
  local rounds = {asked = queues, rooms = shares.rooms, lends = shares.lends, strict = shares.strict}
  if rounds.strict then turns.left = nil end
  begin_round(rounds, queues)
  return rounds
end

-- Returns the queue whose turn it is; nil where nobody's is any more.
local function queue_of(rounds, turns)
  if #rounds.queues == 0 and turns.left then
    begin_round(rounds, turns.left)
    turns.left = nil
  end
  if #rounds.queues == 0 and rounds.lends then
    local rooms, full = rounds.rooms, {}
    for index = 1, #rounds.asked do
      if rooms[rounds.asked[index]] == 0 then full[#full + 1] = rounds.asked[index] end
    end
    rounds.rooms = {}
    if not rounds.strict then turns.left = {} end
    begin_round(rounds, full)
  end
  if rounds.turn > #rounds.queues then rounds.turn = 1 end
  return rounds.queues[rounds.turn]
end

-- A task of the queue was taken, or nothing of it may start.
local function turn_over(rounds, is_taken)
  local queue = rounds.queues[rounds.turn]
  local room = is_taken and rounds.rooms[queue]
  if room then rounds.rooms[queue] = room - 1 end
  if is_taken and room ~= 1 then
    if not rounds.strict then rounds.turn = rounds.turn + 1 end
  else
    table.remove(rounds.queues, rounds.turn)
  end
end
