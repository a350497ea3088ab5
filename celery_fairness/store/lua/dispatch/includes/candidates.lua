--[[
  candidates: whose turn it is among the parked lanes of a queue whose limit has opened.

  What is met on the way and may not start is put where no claim looks: each of these is one move.
  `turns` is a claim's own: moves that are left, looks (tenants of one ring at most), over (one more
  move was wanted), queues that it asks, sleep_ms (how soon something of them is due), and left, the
  queues in which a limit's next was left to another queue, where somebody is due before; noted, at
  which limits ("NAME QUEUE") it is written that they were looked at now; and known, of one queue whose
  turn it is, until the next look at any.
]]
--- @include "closed"
--- @include "park"

local function spend(turns)
  if turns.moves == 0 then
    turns.over = true
    return false
  end
  turns.moves = turns.moves - 1
  return true
end

-- Whether somebody waits in another queue at a limit that may be open, due before `tag`.
local function is_before(prefix, queue, name, tag)
  local looked = redis.call("ZSCORE", prefix .. "candidates:" .. queue, name)
  if not looked or tonumber(looked) < 0 then return false end
  local best = redis.call("ZRANGE", prefix .. "wait:" .. name .. " " .. queue, 0, 0, "WITHSCORES")
  return tonumber(best[2]) < tag
end

local function another_first(prefix, queue, turns, name, tag)
  if not turns.left then return false end
  for index = 1, #turns.queues do
    local other = turns.queues[index]
    if other ~= queue and is_before(prefix, other, name, tag) then return true end
  end
  return false
end

-- Whether the head of a part is of a kind that this claim takes.
local function takes(prefix, queue, key, part, look, rules)
  if not look then return true end
  local lane, kind = read_part(part)
  if look.is_local and full_here(prefix, lane, look, rules) then return false end
  if not kind then
    local head = redis.call("LINDEX", prefix .. list_name(key, lane, queue), 0)
    kind = read_record(head).kind
  end
  return not look.never[kind]
end

-- The virtual time at which a tenant with something waiting is due, if it comes now; and whether it is
-- in `full`, as it mostly is. Where somebody has deleted both it comes into that one.
local function start_of(prefix, queue, key, rules)
  local out = redis.call("ZSCORE", prefix .. "full:" .. queue, key)
  local start = not out and redis.call("ZSCORE", prefix .. "ring:" .. queue, key)
  if start then return tonumber(start), false end
  return math.max(tonumber(out or 0), rules.virtual[queue] or virtual_time(prefix, queue)), true
end

-- Looks at the tenant whose turn it is in a group. Returns what may be served; else nothing, and
-- whether to go on.
local function look_at_group(prefix, queue, name, group, first, rules, turns, look)
  local key, tag = first[1], tonumber(first[2])
  local limit_key = string.match(name, "^[^|]*")
  local now = tonumber(redis.call("ZSCORE", prefix .. "tags:" .. limit_key, key) or 0)
  if now > tag then
    if not spend(turns) then return nil, false end
    set_tag(prefix, queue, group, name, key, now)
    return nil, true
  end
  local part, other = unpack(redis.call("ZRANGE", prefix .. order_name(key, group, queue), 0, 1))
  if not part then
    -- Somebody has deleted its lanes: the others of the group go on.
    if not spend(turns) then return nil, false end
    leave_group(prefix, queue, group, key)
    return nil, true
  end
  local ready = redis.call("ZRANGE", prefix .. order_name(key, nil, queue), 0, 0)[1]
  local lane = read_part(part)
  local refused = refusal(prefix, string.sub(lane, 3), rules)
  if refused and not refused.action then
    if not spend(turns) then return nil, false end
    block_by_limit(prefix, queue, key, part, refused, rules, turns)
    if refused.name == name then
      shut(prefix, queue, refused, stopped_ms(prefix, refused, rules) > 0)
      arm(prefix, refused, rules)
    else
      park(prefix, queue, key, lane, refused, rules, turns)
    end
    return nil, true
  end
  local verdict = judge(prefix, key, rules, queue)
  if ready and string.sub(ready, 1, 1) > string.sub(part, 1, 1) or not verdict.open
    or not takes(prefix, queue, key, part, look, rules) then
    if not spend(turns) then return nil, false end
    unpark(prefix, queue, key, lane, turns)
    return nil, true
  end
  if refused then
    if not spend(turns) then return nil, false end
    act(prefix, queue, key, part, group, other ~= nil, refused, rules, turns)
    return nil, true
  end
  if another_first(prefix, queue, turns, name, tag) then
    turns.left[#turns.left + 1] = queue
    return nil, false
  end
  local place = name .. " " .. queue
  if not turns.noted[place] then
    redis.call("ZADD", prefix .. "candidates:" .. queue, rules.logical, name)
    turns.noted[place] = true
  end
  local start, is_out = start_of(prefix, queue, key, rules)
  return {key = key, part = part, others = other ~= nil, lane = lane, group = group, name = name,
    tag = first[2], due = now, limit_key = limit_key, verdict = verdict, start = start, is_out = is_out}, false
end
