--[[
  publish_tiers: put a whole tier table in the place of the earlier one.

  If the call changes something, it writes an event.

  args[1]  source  str   "database" or "settings"
  args[2]  force   str   "1" is always; "0" is only if the table is not the database's
  args[3+] rows    str   name, JSON, name, JSON, ...

  Returns {written, version}.
    1 WRITTEN   0 KEPT
]]
register("publish_tiers", {"allow-oom"}, function(keys, args)
  local ctx, source, force = {prefix = keys[1]}, args[1], args[2]
  local tiers, clock = ctx.prefix .. Keys.TIERS, ctx.prefix .. Keys.CLOCK

  if force ~= "1" and redis.call("HGET", clock, "tiers_source") == "database" then
    return {0, tonumber(redis.call("HGET", clock, "version") or 0)}
  end
  local rows, before = {}, redis.call("HGETALL", tiers)
  for row = 3, #args, 2 do rows[args[row]] = args[row + 1] end
  local same = #before == #args - 2 and redis.call("HGET", clock, "tiers_source") == source
  for index = 1, #before, 2 do same = same and rows[before[index]] == before[index + 1] end
  if same then return {1, tonumber(redis.call("HGET", clock, "version") or 0)} end
  redis.call("DEL", tiers)
  redis.call("HDEL", clock, "bounded")
  for row = 3, #args, 2 do
    redis.call("HSET", tiers, args[row], args[row + 1])
    -- Without this field, a put reads no tier table.
    if tonumber(cjson.decode(args[row + 1]).max_waiting) then redis.call("HSET", clock, "bounded", 1) end
  end
  redis.call("HSET", clock, "tiers_source", source)
  Events.write_event(ctx, "fairness.tiers_published", "source", source)
  return {1, redis.call("HINCRBY", clock, "version", 1)}
end)
