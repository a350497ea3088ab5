--[[
  publish_tiers: put a whole tier table in the place of the one before.

  What changes something is told. The stream lies beside the news: its name is made from theirs.

  KEYS[1]  tiers   hash  tier -> its numbers as JSON
  KEYS[2]  news    hash  version, source, bounded

  ARGV[1]  source  str   "database" or "settings"
  ARGV[2]  force   str   "1": always; "0": only where the table is not the database's
  ARGV[3+] rows    str   name, JSON, name, JSON, ...

  Returns {written, version}.
    1 WRITTEN   0 KEPT
]]
--- @include "stream"
local tiers, news, source, force = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

if force ~= "1" and redis.call("HGET", news, "source") == "database" then
  return {0, tonumber(redis.call("HGET", news, "version") or 0)}
end
local before = redis.call("HGETALL", tiers)
local same = #before == #ARGV - 2 and redis.call("HGET", news, "source") == source
for index = 1, #before, 2 do
  local found = false
  for row = 3, #ARGV, 2 do
    if ARGV[row] == before[index] and ARGV[row + 1] == before[index + 1] then found = true end
  end
  same = same and found
end
if same then return {1, tonumber(redis.call("HGET", news, "version") or 0)} end
redis.call("DEL", tiers)
redis.call("HDEL", news, "bounded")
for row = 3, #ARGV, 2 do
  redis.call("HSET", tiers, ARGV[row], ARGV[row + 1])
  -- Puts look no further where it is not there.
  if tonumber(cjson.decode(ARGV[row + 1]).max_waiting) then redis.call("HSET", news, "bounded", 1) end
end
redis.call("HSET", news, "source", source)
local prefix = string.sub(news, 1, -1 - #"news")
append_event(prefix .. "events", "fairness.tiers_published", "source", source)
return {1, redis.call("HINCRBY", news, "version", 1)}
