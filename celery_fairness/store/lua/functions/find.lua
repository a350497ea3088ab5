--[[
  find: where the tasks of an id are. The function writes nothing.

  args[1]  id      str  as it is written in keys
  args[2]  first   int  index of the first of its messages, the oldest first

  Returns {next, ROW, …}. `next` is the index of the next page, or "" if there is none. A row is that of one message,
  `{tag, state, owner, due_ms, head, message}`:
  - state is `waiting`, `later`, `running`, `dead` or `ended`. A task that ended waits until its result is written.
  - owner is the process that runs it, or "". due_ms is the time for which it waits, or "".
]]
-- A producer may use one id for thousands of tasks, and each message may be large.
local PAGE = 50

register("find", {"no-writes"}, function(keys, args)
  local ctx, first = {prefix = keys[1]}, tonumber(args[2])
  local tags = Tasks.tags_of(ctx, args[1])
  local last = math.min(#tags, first + PAGE)
  return Find.add_rows(ctx, {unpack(tags, first + 1, last)}, {last < #tags and last or ""})
end)
