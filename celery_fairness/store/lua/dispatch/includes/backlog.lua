--[[
  backlog: whether one more task of a tenant, or of a queue, may begin to wait.

  What is published of tiers goes before what the producer's settings say. What waits until its time
  does not count: nobody knows yet whether it will find others there.
]]
--- @include "lanes"

-- What the published tiers say of a tenant; nil: any number.
local function published_most(prefix, tenant, tier, default_tier)
  local record = redis.call("HGET", prefix .. "tenant:" .. tenant, "tier")
  if record and record ~= "" then tier = record end
  local rows = redis.call("HMGET", prefix .. "tiers", tier, default_tier)
  local row = rows[1] or rows[2]
  return row and tonumber(cjson.decode(row).max_waiting) or nil
end

-- How many tasks of a tenant wait, and the tier of the last put that knew one, "" where none waits.
local function waiting_of_tenant(prefix, key)
  local waiting, tier = 0, ""
  local fields = redis.call("HGETALL", prefix .. "account:" .. key)
  for index = 1, #fields, 2 do
    if fields[index] == "tier" then tier = fields[index + 1] end
    if string.sub(fields[index], 1, 2) == "q:" then waiting = waiting + tonumber(fields[index + 1]) end
  end
  return waiting, tier
end

-- Returns {key, limit, waiting} of what has no room for one more; nil where all have.
local function full_of(prefix, queue, task, default_tier, of_tier, of_queue)
  local news = redis.call("HMGET", prefix .. "news", "source", "bounded")
  if task.key ~= SYSTEM and (news[2] or of_tier ~= "" and not news[1]) then
    local waiting, known = waiting_of_tenant(prefix, task.key)
    local most = tonumber(of_tier)
    if news[2] then
      local tier = task.tier == "" and known or task.tier
      most = published_most(prefix, task.tenant, tier, default_tier)
    end
    if most and waiting >= most then return {task.key, most, waiting} end
  end
  local most = tonumber(of_queue)
  if not most then return nil end
  local waiting = tonumber(redis.call("HGET", prefix .. "waiting", queue) or 0)
  return waiting >= most and {"queue:" .. queue, most, waiting} or nil
end
