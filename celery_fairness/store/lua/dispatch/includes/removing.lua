--[[
  removing: a task leaves its lane from wherever it stands there.
]]
--- @include "groups"
--- @include "taking"

-- A task was taken out of a list of the lane: `kind` of those that came back, else nil.
local function removed(prefix, queue, key, lane, kind)
  local part = kind and lane .. "b " .. kind or lane
  local group = group_of(prefix, queue, key, lane)
  note_first(prefix, queue, key, part, order_name(key, group, queue))
  forget_part(prefix, queue, key, part)
  left_group(prefix, queue, key, group)
  task_left(prefix, queue, key)
  leave_ring(prefix, queue, key)
end

-- Takes a task that came back, with this record, out of its lane. Returns whether it waited there.
local function remove_back(prefix, queue, task)
  local lane = lane_of(task)
  if redis.call("ZREM", prefix .. back_name(task.key, lane, task.kind, queue), task.tag) == 0 then
    return false
  end
  redis.call("HDEL", prefix .. "returned", task.tag)
  removed(prefix, queue, task.key, lane, task.kind)
  return true
end

-- Takes a task out of a queue, with this record, wherever it waits. Returns whether it waited there:
-- false or nil where not, else true; where it waited for its time, that time.
local function remove_waiting(prefix, queue, task, record)
  local later, member = prefix .. "later:" .. queue, string.format("%016.0f ", task.seq) .. record
  local due = redis.call("ZSCORE", later, member)
  if due then
    redis.call("ZREM", later, member)
    return due
  end
  local lane = lane_of(task)
  if redis.call("LREM", prefix .. list_name(task.key, lane, queue), 1, record) == 1 then
    removed(prefix, queue, task.key, lane)
    return true
  end
  return redis.call("HGET", prefix .. "returned", task.tag) == record
    and remove_back(prefix, queue, task)
end
