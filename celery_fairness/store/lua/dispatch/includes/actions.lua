--[[
  actions: what becomes of a task that its limits refuse, where they say that it shall not wait.

  It may be dropped, with an obituary that names the key of the limit, or tried again later. It has
  not started: its tenant is not charged, its attempts are those of before.
]]
--- @include "closed"
--- @include "pace"
--- @include "taking"
--- @include "until"
--- @include "weight"

-- Takes out the first task of a part; `refused` says what of it, by whom and how soon.
local function act(prefix, queue, key, part, group, others, refused, rules, turns)
  local record = pop_part(prefix, queue, key, part, group, others)
  -- Somebody has deleted the lane: whoever looks next finds nothing of it.
  if not record then return end
  local task, message = read_record(record)
  weigh(turns, units_of(message))
  local closed = why_closed(prefix, refused, rules)
  count_exceeded(prefix .. "exceeded", closed.strategy, closed.key)
  task_left(prefix, queue, key)
  leave_ring(prefix, queue, key)
  local expires = prefix .. "expires:" .. queue
  local ends_at = rules.expiring and redis.call("ZSCORE", expires, task.tag)
  if refused.action == "d" then
    if ends_at then redis.call("ZREM", expires, task.tag) end
    redis.call("SREM", prefix .. "known", task.tag)
    redis.call("HINCRBY", prefix .. "counts", "dropped", 1)
    write_event_of(prefix, "rate_limit.dropped", queue, task, message, "key", refused.by)
    rare().leave_obituary(prefix, rules, write_running(refused.by, "dropped", queue, record))
    return
  end
  redis.call("HINCRBY", prefix .. "counts", "rescheduled", 1)
  if task.blocked == "" then tell_blocked(prefix, queue, task, message, closed) end
  local wait = pace_ms(prefix, refused.says, refused.again_ms, refused.why == "full", rules,
    task.tag .. "." .. whole(task.seq), rules.snooze_ms / JITTER_PARTS)
  wait_until(prefix, queue, task, message, math.min(rules.now + wait, ends_at and tonumber(ends_at) or math.huge))
  remember_later(prefix, refused.by, queue, task, wait, rules)
  turns.sleep_ms = math.min(turns.sleep_ms, wait)
end
