--[[
  find: which task a claim takes next: out of the ring, or out of a group whose limit has opened.

  Of the two the tenant with the lesser start goes first. A tenant at its tier's limit leaves the ring
  on the way, a lane that a limit refuses is parked; one of whom this process takes nothing stays.
]]
--- @include "judge"
--- @include "passing"
--- @include "taking"

-- Looks at a member of the ring. Returns what may be served; else nothing, whether to go on, and whether it
-- is passed over: `beyond` others that may be served of a lower rank than they stand by.
local function look_at_tenant(prefix, queue, key, start, rules, turns, look, beyond)
  local part, others
  if look then
    part, others = rare().open_part(prefix, queue, key, look, rules)
    if not part then
      -- Who has more lanes than one claim looks at hides nobody: the next goes on behind.
      local passed
      if beyond > 0 then passed = spend_pass(look) else passed = pass_over(look, queue) end
      local goes_on = passed and look.lanes > 0
      turns.over = turns.over or not goes_on
      return nil, goes_on, true
    end
  else
    local parts = redis.call("ZRANGE", prefix .. "ready:" .. key .. " " .. queue, 0, 1)
    part, others = parts[1], parts[2] ~= nil
    if not part then
      -- Somebody has deleted its keys: the others of the queue go on.
      leave_ring(prefix, queue, key)
      return nil, true
    end
  end
  local verdict, lane = judge(prefix, key, rules, queue), read_part(part)
  local refused = #lane > 1 and verdict.open
    and limited().refusal(prefix, string.sub(lane, 3), rules)
  if verdict.open and not refused then
    return {key = key, part = part, others = others, start = start, verdict = verdict}
  end
  if turns.moves == 0 then
    turns.over = true
    return nil, false
  end
  turns.moves = turns.moves - 1
  if refused and refused.action then
    limited().act(prefix, queue, key, part, nil, others, refused, rules, turns)
  elseif refused then
    limited().block_by_limit(prefix, queue, key, part, refused, rules, turns)
    limited().park(prefix, queue, key, lane, refused, rules, turns)
  else
    rare().block_by_tier(prefix, queue, key, part, verdict, rules, turns)
    fill(prefix, queue, key, start, verdict, rules)
  end
  return nil, true
end

-- Returns key, part, others (as for pop_part), start and verdict of what is served next, and of what
-- was parked its lane, group and where that waits; nil where nothing of the queue may start.
local function find(prefix, queue, rules, turns, look)
  local opened
  local known, moves, beyond = turns.known, turns.moves, 0
  turns.known = nil
  if known and known.queue ~= queue then known = nil end
  if rules.limited then
    opened = limited().of_groups(prefix, queue, rules, turns, look, known)
  end
  -- What was moved may have changed the ring.
  local member = known and turns.moves == moves and known.member
  local best = opened
  for _ = 0, turns.looks do
    local at = (look and look.places[queue] or 0) + beyond
    member = member or member_at(prefix, queue, at, turns.ranked[queue])
    local key, start, rank = member[1], tonumber(member[2]), member[3]
    if opened then opened.member = not look and member end
    if not key or best and goes_first(best, rank, start) then return best end
    local found, goes_on, passed = look_at_tenant(prefix, queue, key, start, rules, turns, look, beyond)
    if found then
      local its = string.sub(found.part, 1, 1)
      if not (look and rank and its < rank) then return found end
      -- Of what it stands by this process takes nothing: others may have more urgent tasks than the rest.
      if not (best and goes_first(best, its, start)) then best = found end
      goes_on, beyond = spend_pass(look), beyond + 1
    elseif passed and beyond > 0 then
      beyond = beyond + 1
    end
    member = nil
    if not goes_on then return best end
  end
  return best
end

-- The same; its tenant, where it was found closed, is open now.
local function next_of(prefix, queue, rules, turns, look)
  local found = find(prefix, queue, rules, turns, look)
  if not found then return nil end
  if found.verdict.closed then
    reopen(prefix, found.key, rules)
    found.is_out = found.is_out and not redis.call("ZSCORE", prefix .. "ring:" .. queue, found.key)
  end
  if found.verdict.full then count_refusal(prefix, queue, found.verdict, rules) end
  return found
end
