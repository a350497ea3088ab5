--[[
  find: where the tasks of an id are. The function writes nothing.

  args[1]  id      str  as it is written in keys
  args[2]  last    str  where the page ends, "" for the newest messages

  Returns {next, ROW, …}. `next` is where the page before ends, or "" if there is none. Old messages end first, so pages
  go from the newest on, and skip none. A row is that of one message, `{tag, state, owner, head, message}`. The
  oldest of a page comes first.
  - state is `waiting`, `later`, `running`, `dead` or `ended`. A task that ended waits until its result is written.
  - owner is the process that runs it, or "".
]]
-- A producer may use one id for thousands of tasks, and each message may be large.
local PAGE = 50

register("find", {"no-writes"}, function(keys, args)
  local ctx = {prefix = keys[1]}
  local tags = Tasks.tags_of(ctx, args[1])
  local last = math.min(tonumber(args[2]) or #tags, #tags)
  local first = math.max(0, last - PAGE)
  return Find.add_rows(ctx, {unpack(tags, first + 1, last)}, {first > 0 and first or ""})
end)
