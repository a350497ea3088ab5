--[[
  move_in: tasks of a page come from another installation (moves.lua), with their places, attempts, deaths and expiry. A
  second call with the same page does nothing, and so does a task that is known.

  A lane has the order of the calls. The tasks were accepted before, so no `max_waiting` rejects them, and their numbers
  do not replace newer ones of their keys.

  args[1]  wanted   str  a JSON object: page, lease_ms, and frozen_ms, which is "" in production (server TIME)
  args[2+] rows     any  tag, head, message, place, expires and unique of each task (Moves.read_page)

  Returns 1, or 0 if the page was here before, or an error with the word SAME if it comes from this installation.
]]
register("move_in", {}, function(keys, args)
  local ctx, wanted = {prefix = keys[1], memo = {}, result = {}}, cjson.decode(args[1])
  local logical, now, _, flags = Clock.tick(ctx, wanted.lease_ms, wanted.frozen_ms)
  ctx.ranked, ctx.unique = flags.ranked, flags.unique

  if Moves.open_page(ctx) == wanted.page then return redis.error_reply("SAME the page comes from this installation") end
  -- Redis undoes no write if the function fails later, so a head that cannot be read is an error now.
  local tasks = {}
  for index = 2, #args, 6 do tasks[index] = Tasks.read_head(args[index], args[index + 1]) end
  if not Moves.note_received(ctx, wanted.page) then return 0 end
  local rules = {now = now, logical = logical, limited = flags.limited}
  for index = 2, #args, 6 do Moves.bring_in(ctx, tasks[index], {unpack(args, index + 2, index + 5)}, rules) end
  return 1
end)
