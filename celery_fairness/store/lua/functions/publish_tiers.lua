--[[
  publish_tiers: put a whole tier table in the place of the earlier one.

  If the call changes something, it writes an event.

  The argument is a JSON object:
  source  "database" or "settings"
  force   false only replaces a table that is not the database's
  tiers   by name, a JSON text with the numbers of the tier as a text (numbers.lua), and its queue class

  Returns JSON. `is_written` says whether the table is in force, and `version` is that of the config.
]]
register_json("publish_tiers", {"allow-oom"}, function(ctx, wanted)
  local source, rows = wanted.source, wanted.tiers
  local tiers, clock = ctx.prefix .. Keys.TIERS, ctx.prefix .. Keys.CLOCK
  local version, before_source = unpack(redis.call("HMGET", clock, "version", "tiers_source"))
  version = tonumber(version or 0)
  if not wanted.force and before_source == "database" then return {is_written = false, version = version} end
  local before, count = redis.call("HGETALL", tiers), 0
  for _ in pairs(rows) do count = count + 1 end
  local same = #before == 2 * count and before_source == source
  for index = 1, #before, 2 do same = same and rows[before[index]] == before[index + 1] end
  if same then return {is_written = true, version = version} end
  redis.call("DEL", tiers)
  redis.call("HDEL", clock, "bounded")
  for name, row in pairs(rows) do
    redis.call("HSET", tiers, name, row)
    -- Without this field, a put reads no tier table.
    if Config.read_tier(row).max_waiting then redis.call("HSET", clock, "bounded", 1) end
  end
  redis.call("HSET", clock, "tiers_source", source)
  Events.write_event(ctx, "fairness.tiers_published", "source", source)
  return {is_written = true, version = redis.call("HINCRBY", clock, "version", 1)}
end)
