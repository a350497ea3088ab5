--[[
  queue: say what a queue may, as a whole or each partition of it (queues.lua).

  What runs runs on. What waits is judged by the new numbers by the next claim.

  KEYS[1]  prefix       str  what every key of the installation begins with

  ARGV[1]  how          str  "declare", "set", "clear", or "know": people will say something of its key
  ARGV[2]  queue        str  whose limit
  ARGV[3]  key          str  of the queue as a whole
  ARGV[4]  shape        str  "whole" or "parts", of what is declared
  ARGV[5]  numbers      str  as queues.lua has them, or ""
  ARGV[6]  lease_ms     int  how long a lease lives without a renewal
  ARGV[7]  enforcement  str  "on", "observe" or "off"
  ARGV[8]  frozen_ms    str  "" in production (server TIME); set only by tests

  Returns all that is said of the queue now, "" where that is nothing.
]]
--- @include "tick"
--- @include "said"
local prefix, how, queue, key = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local shape, numbers, lease_ms, frozen_ms = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[8]

if not (string.match(key, "^queue:[^:%s,|]+$") and string.match(numbers, "^%S*$")) then
  return redis.error_reply("queue: expected a key queue:QUEUE and a word, got: " .. key .. " " .. numbers)
end
local logical, now = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {logical = logical, now = now, enforcement = ARGV[7]}
local before = queue_row(prefix, queue, rules)
local declared, set, parts = "", "", false
if before then declared, set, parts = before.declared, before.set, before.parts end
if how == "declare" then declared, parts = numbers, shape == "parts" and numbers ~= "" end
if how == "set" then
  write_event(prefix, "fairness.queue_limit_set", "key", key, "numbers", numbers)
elseif how == "clear" and set ~= "" then
  write_event(prefix, "fairness.queue_limit_cleared", "key", key)
end
if how == "set" or how == "clear" then set = numbers end
local text = table.concat({declared, set}, " ")
if before and how == "know" then return redis.call("HGET", prefix .. "queue_limits", queue) end

-- A row is needed while anything waits by it, or people say something of its key.
local needed = text ~= " " or how == "know"
  or redis.call("SISMEMBER", prefix .. "paused", key) == 1
  or redis.call("ZSCORE", prefix .. "paused_until", key)
  or redis.call("ZSCORE", prefix .. "cooled", key)
  or redis.call("HEXISTS", prefix .. "overrides", key) == 1
  or redis.call("EXISTS", prefix .. "candidates:" .. queue) == 1
if not needed then
  redis.call("HDEL", prefix .. "queue_limits", queue)
  redis.call("HDEL", prefix .. "queue_keys", key)
  if redis.call("EXISTS", prefix .. "queue_limits") == 0 then
    redis.call("HDEL", prefix .. "clock", "queued")
  end
else
  local version = redis.call("HINCRBY", prefix .. "news", "queues", 1)
  text = table.concat({key, parts and "parts" or "whole", string.format("%.0f", version), text}, " ")
  redis.call("HSET", prefix .. "queue_limits", queue, text)
  redis.call("HSET", prefix .. "queue_keys", key, queue)
  redis.call("HSET", prefix .. "clock", "limited", 1, "queued", 1)
end
rules.rows = nil
wake_queue(prefix, queue)
bring_forward(prefix, key, rules)
return needed and text or ""
