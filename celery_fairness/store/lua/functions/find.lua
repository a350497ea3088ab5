--[[
  find: where tasks are. The function writes nothing.

  args[1+] id      str  of each task, as it is written in keys

  Returns for each message of these ids `{tag, state, owner, due_ms, head, message}`. The oldest of an id comes first.
  - state is `waiting`, `later`, `running`, `dead` or `ended`. A task that ended waits until its result is written.
  - owner is the process that runs it, or "". due_ms is the time for which it waits, or "".
]]
register("find", {"no-writes"}, function(keys, args)
  local ctx, answer = {prefix = keys[1]}, {}
  for index = 1, #args do Find.add_rows(ctx, Tasks.tags_of(ctx, args[index]), answer) end
  return answer
end)
