--[[
  find: the place of a task by its tag.
]]

-- Returns the state of a task, its owner if it runs, and its time if it waits for one.
function Find.state_of(ctx, task)
  local row = redis.call("HGET", ctx.prefix .. Keys.RUNNING, task.tag)
  if row then return "running", Tasks.read_row(row).owner end
  local due = redis.call("ZSCORE", ctx.prefix .. Keys.SCHEDULED .. task.queue, Schedule.member_of(task))
  if due then return "delayed", "", due end
  local lane = Lanes.tags_name(task.key, Lanes.lane_of(task), task.queue)
  if redis.call("ZSCORE", ctx.prefix .. lane, task.tag) then return "waiting", "" end
  if redis.call("ZSCORE", ctx.prefix .. Keys.DEAD .. task.queue, task.tag) then return "dead", "" end
  return Moves.is_moving(ctx, task.tag) and "moving" or "ended", ""
end

-- Adds {tag, state, owner, head, message} of each tag that is known to `rows`.
function Find.add_rows(ctx, tags, rows)
  for index = 1, #tags do
    local tag = tags[index]
    local head = redis.call("HGET", ctx.prefix .. Keys.TASKS, tag)
    if head then
      local state, owner = Find.state_of(ctx, Tasks.read_head(tag, head))
      rows[#rows + 1] = {tag, state, owner, head, Tasks.message_of(ctx, tag)}
    end
  end
  return rows
end
