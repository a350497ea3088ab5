--[[
  epoch: the epoch of the memory. A process that connects to its broker reads it, before it may claim anything. The
  function writes only the clock, so a user who may only put can call it.

  args[1]  lease_ms   int  how long a lease lives without a renewal
  args[2]  frozen_ms  str  "" in production (server TIME); set only by tests
  args[3]  partitions str  how many partitions the caller's settings have, "" in a partition itself. The first caller fixes
                           the number. An installation without it has one
  args[4]  place      str  the position of this server in a list of servers, as in "2/3", may be absent. The first caller
                           fixes it, under the prefix of the home on each server

  Returns the epoch in ms. If the number or the place is another one, returns an error. That has the word PARTITIONS and the
  number that the installation has, or the word SERVERS and the place that this server has.
]]
register("epoch", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1], memo = {}, result = {}}
  local kept, partitions = redis.call("HMGET", ctx.prefix .. Keys.CLOCK, "partitions", "schema", "place"), args[3]
  local fixed = kept[1] or kept[2] and "1" or partitions
  if partitions ~= "" and partitions ~= fixed then return redis.error_reply("PARTITIONS " .. fixed) end
  local place = args[4] or ""
  local fixed_place = kept[3] or kept[2] and "" or place
  if partitions ~= "" and place ~= fixed_place then return redis.error_reply("SERVERS " .. fixed_place) end
  if not kept[1] and partitions ~= "" and partitions ~= "1" then
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "partitions", partitions)
    if place ~= "" then redis.call("HSET", ctx.prefix .. Keys.CLOCK, "place", place) end
  end
  local _, now, epoch = Clock.tick(ctx, tonumber(args[1]), args[2])
  return Rates.int_text(Clock.meet_server(ctx, epoch, now))
end)
