--[[
  move_to_list: a task leaves its queue, and its message goes to a plain list of the stock transport. The task is
  one that the caller has claimed, or one that waits for its time. A claim may have moved that one into its lane since
  `scheduled`, and then it leaves the lane.

  args[1-5] settings  any  of the worker (Tenants.rules_of)
  args[6]  frozen_ms  str  "" in production (server TIME); set only by tests
  args[7]  lease      str  of the claimed task, or ""
  args[8]  tag        str  of the task that waits for its time, or ""
  args[9]  list       str  key of the plain list
  args[10] entry      str  the message, as the stock transport writes it

  Returns 1 if the task moved. Returns 0 if it does not wait any more, or if the lease has ended. If the key of the
  plain list has another type of value, the call is an error and the task stays.
]]
register("move_to_list", {"allow-oom"}, function(keys, args)
  local ctx, frozen_ms, lease, tag = {prefix = keys[1], memo = {}, result = {}}, args[6], args[7], args[8]
  local rules = Tenants.rules_of(ctx, args, 1, frozen_ms)

  -- Redis undoes no write if the function fails later.
  local kind = redis.call("TYPE", args[9]).ok
  if kind ~= "none" and kind ~= "list" then
    return redis.error_reply("WRONGTYPE the key of the plain list " .. args[9] .. " is a " .. kind)
  end
  local moves
  if lease == "" then
    moves = Settle.withdraw(ctx, tag)
  else
    moves = Settle.settle(ctx, rules, lease, "done-") ~= 0
  end
  if moves then redis.call("LPUSH", args[9], args[10]) end
  Leases.open_freed(ctx, rules)
  return moves and 1 or 0
end)
