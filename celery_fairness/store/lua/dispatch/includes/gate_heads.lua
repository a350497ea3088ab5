--[[
  gate_heads: who waits longest at a key of a gate, at each of its places.

  Tasks with one key may have other numbers, and each is judged by its own: one that must not start yet
  keeps back those of its place, and nobody else.
]]
--- @include "gate_parked"

-- Places of one key that one call looks at; where there are more the others come with the next.
local PLACES_AT_MOST = 8

-- The places of a key that nobody has looked at since it was due, and whether there are more of them.
local function heads_of(prefix, key, since, logical)
  local name, heads = prefix .. "gate_places:" .. key, {}
  local places = redis.call(
    "ZRANGEBYSCORE", name, "-inf", "+inf", "WITHSCORES", "LIMIT", 0, PLACES_AT_MOST + 1)
  local next_look = tonumber(places[2 * PLACES_AT_MOST + 2])
  for index = 1, PLACES_AT_MOST do
    local place = places[2 * index - 1]
    heads[index] = place and {place = place}
    if next_look then redis.call("ZADD", name, whole(logical), place) end
  end
  return heads, next_look and next_look <= since
end

-- The head that waits longest of those that are not found to be kept; nil where there is none.
local function first_head(prefix, heads)
  local first
  for index = 1, #heads do
    local head = heads[index]
    if not head.tag and not head.kept then
      local row = redis.call("ZRANGE", prefix .. "gate_at:" .. head.place, 0, 0, "WITHSCORES")
      head.tag, head.seq, head.kept = row[1], tonumber(row[2]), not row[1]
      -- Nobody is left there.
      if head.kept then redis.call("ZREM", prefix .. "gate_places:" .. key_of_place(head.place), head.place) end
    end
    if not head.kept and (not first or head.seq < first.seq) then first = head end
  end
  return first
end
