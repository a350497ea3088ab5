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

-- From which end of a list, which is in the order of its tasks, a task is found sooner: 1 or -1; nil
-- where it is not between them.
local function nearer_end(list, seq)
  local first = tonumber(string.match(redis.call("LINDEX", list, 0) or "", "^%d+"))
  local last = tonumber(string.match(redis.call("LINDEX", list, -1) or "", "^%d+"))
  if not first or seq < first or seq > last then return nil end
  return seq - first <= last - seq and 1 or -1
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
  local list = prefix .. list_name(task.key, lane, queue)
  local from = nearer_end(list, task.seq)
  if from and redis.call("LREM", list, from, record) == 1 then
    removed(prefix, queue, task.key, lane)
    return true
  end
  return redis.call("HGET", prefix .. "returned", task.tag) == record
    and remove_back(prefix, queue, task)
end
