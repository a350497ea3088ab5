--[[
  move_out: the next page of tasks that leave for another installation (moves.lua). If a page is open, the call returns
  that one, whoever has opened it.

  The argument is a JSON object:
  page       a new name for the page that this call may open
  closed     the page that the caller has brought in there. If it is the open one, its tasks are deleted here. Absent if
             there is none
  back       true if the tasks of `closed` are put back into their places instead
  queues     whose tasks are wanted. Without a queue the call opens no page
  most       how many tasks a page has at most
  lease_ms   how long a lease lives without a renewal
  frozen_ms  "" in production (server TIME); set only by tests

  Returns {PAGE, ROW, …}, or {} if no task is left. A row is {tag, head, message, place, expires, unique} of one task
  (Moves.read_page).
]]
register("move_out", {"allow-oom"}, function(keys, args)
  local ctx, wanted = {prefix = keys[1], memo = {}, result = {}}, cjson.decode(args[1])
  local logical, now, _, flags = Clock.tick(ctx, wanted.lease_ms, wanted.frozen_ms)
  ctx.ranked, ctx.unique = flags.ranked, flags.unique

  local open = Moves.open_page(ctx)
  if open and open == wanted.closed then
    if wanted.back then Moves.put_page_back(ctx, logical) else Moves.delete_page(ctx) end
    open = nil
  end
  if not open then Moves.take_page(ctx, wanted.page, Queues.not_ended(ctx, wanted.queues, now), wanted.most) end
  open = Moves.open_page(ctx)
  if not open then return {} end
  local rows = Moves.read_page(ctx)
  table.insert(rows, 1, open)
  return rows
end)
