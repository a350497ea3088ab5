--[[
  backlog: whether one more task of a tenant, or of a queue, may begin to wait.

  The published tiers replace the settings of the producer. A task that waits for its time does not count. It may
  find no other tasks there when its time has come.
]]

-- Returns the number that the published tiers have for a tenant. If it is nil, any number may wait.
function Backlog.published_most(ctx, tenant, tier, default_tier)
  local _, _, _, row = Config.entitlement(ctx.prefix .. "tiers", ctx.prefix .. "tenant:" .. tenant, tier, "",
    default_tier, "", {})
  return row and tonumber(row.max_waiting) or nil
end

-- Returns how many tasks of a tenant wait, and the tier of the last put that carried one. The tier is "" if
-- none waits.
function Backlog.waiting_of_tenant(ctx, key)
  local waiting, tier = 0, ""
  local fields = redis.call("HGETALL", ctx.prefix .. "account:" .. key)
  for index = 1, #fields, 2 do
    if fields[index] == "tier" then tier = fields[index + 1] end
    if string.sub(fields[index], 1, 2) == "q:" then waiting = waiting + tonumber(fields[index + 1]) end
  end
  return waiting, tier
end

-- Returns {key, limit, waiting} of the tenant or queue that has no room for one more. It returns nil if both
-- have room.
function Backlog.full_of(ctx, queue, task, default_tier, of_tier, of_queue)
  local news = redis.call("HMGET", ctx.prefix .. "news", "source", "bounded")
  if task.key ~= Tasks.SYSTEM and (news[2] or of_tier ~= "" and not news[1]) then
    local waiting, known = Backlog.waiting_of_tenant(ctx, task.key)
    local most = tonumber(of_tier)
    if news[2] then
      local tier = task.tier == "" and known or task.tier
      most = Backlog.published_most(ctx, task.tenant, tier, default_tier)
    end
    if most and waiting >= most then return {task.key, most, waiting} end
  end
  local most = tonumber(of_queue)
  if not most then return nil end
  local waiting = tonumber(redis.call("HGET", ctx.prefix .. "waiting", queue) or 0)
  return waiting >= most and {"queue:" .. queue, most, waiting} or nil
end
