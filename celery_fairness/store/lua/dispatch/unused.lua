--[[
  unused: keep queues that end when nobody uses them, and end the one whose time is over longest.

  A queue that ends forgets what waits in it; what runs is not touched.

  KEYS[1]  prefix    str  what every key of the installation begins with

  ARGV[1]  frozen_ms str  "" in production (server TIME); set only by tests
  ARGV[2+] used      str  pairs: a queue that is in use now; for how long it is kept without, in ms,
                          or 0: for ever

  Returns in how many ms to call again: 0 where there is more to do, -1 where no queue will end.
]]
--- @include "forget"
--- @include "now"
local prefix, frozen_ms = KEYS[1], ARGV[1]
local now = server_now(frozen_ms)
local unused = prefix .. "unused"

for index = 2, #ARGV, 2 do
  local queue, kept_ms = ARGV[index], tonumber(ARGV[index + 1])
  if kept_ms > 0 then
    redis.call("ZADD", unused, now + kept_ms, queue)
  else
    redis.call("ZREM", unused, queue)
  end
end

local first = redis.call("ZRANGE", unused, 0, 0, "WITHSCORES")
local queue, ends = first[1], tonumber(first[2])
local wait_ms = -1
if queue then
  wait_ms = math.max(0, ends - now)
  if wait_ms == 0 and forget_waiting(prefix, queue) < FORGET_AT_MOST then
    redis.call("ZREM", unused, queue)
  end
end
return wait_ms
