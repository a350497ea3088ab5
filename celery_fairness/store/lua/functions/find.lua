--[[
  find: where the tasks of an id are. The function writes nothing.

  args[1]  id      str  as it is written in keys
  args[2]  last    str  where the page ends, "" for the first page

  Returns {next, ROW, …}. `next` is where the page before ends, or "" if there is none. Pages go from the newest messages
  on (Tasks.tags_of). A row is that of one message, `{tag, state, owner, head, message}`.
  - state is `waiting`, `delayed`, `running`, `dead`, `moving` (moves.lua) or `ended`. A task that ended waits until its
    result is written.
  - owner is the process that runs it, or "".
]]
-- A producer may use one id for thousands of tasks, and each message may be large. Usually one task has an id.
local PAGE = 10

register("find", {"no-writes"}, function(keys, args)
  local ctx = {prefix = keys[1], memo = {}, result = {}}
  local tags, next_last = Tasks.tags_of(ctx, args[1], args[2], PAGE)
  return Find.add_rows(ctx, tags, {next_last})
end)
