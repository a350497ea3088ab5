--[[
  ring: wake workers for one partition. It runs in the home of an installation, which has the bells (rings.lua).

  Takes a JSON object:
  - partition  int   the partition
  - new        list  queues to which a task came, may be absent
  - left       list  queues in which a claim has left tasks, may be absent

  Each bell is a list of partitions without a double. Returns how many it has entered.
]]
register_json("ring", {"allow-oom"}, function(ctx, wanted)
  local partition, rung = string.format("%d", wanted.partition), 0
  for _, kind in ipairs({"new", "left"}) do
    for _, queue in ipairs(wanted[kind] or {}) do
      local bell = ctx.prefix .. Keys.BELL .. kind .. " " .. queue
      if not redis.call("LPOS", bell, partition) then
        redis.call("RPUSH", bell, partition)
        rung = rung + 1
      end
    end
  end
  return rung
end)
