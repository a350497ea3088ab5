--[[
  rows: each lease has a row, has an end and counts at each of its keys, and nothing else counts.

  A promotion (promotions.lua) reserves starts only while it lasts. Its task has a record until the broker has the copy.
]]

-- The rows of more leases of a key are not added up.
local LEASES_AT_MOST, LOOKS_AT_MOST = 2000, 1000

function Rows.running(it, _, field)
  local ctx = it.ctx
  local text = redis.call("HGET", ctx.prefix .. Keys.RUNNING, field)
  if not text then return end
  local row = Tasks.read_row(text)
  local lease = row.state == "held" and field or field .. "." .. row.attempt .. "." .. row.nonce
  if not redis.call("ZSCORE", ctx.prefix .. Keys.ENDS, lease) then
    Check.found(it, "task_without_end", "running", field, function()
      redis.call("ZADD", ctx.prefix .. Keys.ENDS, it.rules.logical + it.rules.lease_ms, lease)
    end)
  end
  if Promotions.is_promotion(row) then
    Check.flag(it, "parked")
    if Rows.is_lost(it, field, lease, row) then return end
  end
  for key in string.gmatch(row.keys, "[^,]+") do
    if not Slots.since(ctx, key, lease) then
      Check.found(it, "task_not_counted", Slots.table_of(key), lease, function()
        Slots.take(ctx, key, lease, it.rules, Slots.of_lease(row.amounts, key))
      end)
    end
  end
end

-- Returns whether a promotion has no task, and so no slots.
function Rows.is_lost(it, tag, lease, row)
  local ctx, task = it.ctx, Tasks.read(it.ctx, tag)
  if row.state == "sent" and task then
    Check.found(it, "sent_task_known", "running", tag, function()
      Lanes.remove_waiting(ctx, task)
      Tasks.forget(ctx, task)
    end)
  elseif row.state == "promoted" and not (task and Promotions.is_parked(task.queue)) then
    Check.found(it, "promotion_without_task", "running", tag, function()
      Leases.end_lease(ctx, lease, tag, row, it.rules)
      Leases.open_freed(ctx, it.rules)
    end)
    return true
  end
end

function Rows.reserved(it, key, reservation)
  local lease = string.match(reservation, "^[^*]*")
  local reserved, row = it.ctx.prefix .. Keys.RESERVED .. key, Tasks.read_running(it.ctx, lease)
  if row and Promotions.is_promotion(row) and string.find("," .. row.keys .. ",", "," .. key .. ",", 1, true) then return end
  if not redis.call("ZSCORE", reserved, reservation) then return end
  Check.found(it, "start_without_promotion", Keys.RESERVED .. key, lease, function()
    redis.call("ZREM", reserved, reservation)
    Wake.wake_waiters(it.ctx, key, it.rules)
  end)
end

function Rows.lease(it, key, lease)
  if not Slots.since(it.ctx, key, lease) then return end
  local row = Tasks.row_of(it.ctx, lease)
  if row and string.find("," .. row.keys .. ",", "," .. key .. ",", 1, true) then return end
  Check.found(it, "slot_without_task", Slots.table_of(key), lease, function()
    Slots.give(it.ctx, key, lease, 1)
    Leases.freed(it.ctx, key)
    Leases.open_freed(it.ctx, it.rules)
  end)
end

local function slots_not_counted(it, key, more)
  Check.found(it, "slots_not_counted", Slots.table_of(key), "", function()
    Slots.add_beside(it.ctx, key, more)
    Wake.wake_waiters(it.ctx, key, it.rules)
  end)
end

-- The leases of a key take as many slots as their rows say.
function Rows.leases(it, key)
  local ctx, most = it.ctx, it.repairs and LEASES_AT_MOST or LOOKS_AT_MOST
  if not ctx.slots or Slots.leases(ctx, key) > most then return end
  local leases, more = Slots.page(ctx, key, 0, -1), -Slots.beside(ctx, key)
  it.left = it.left - #leases
  for index = 1, #leases do
    local row = Tasks.row_of(ctx, leases[index])
    if row then more = more + Slots.of_lease(row.amounts, key) - 1 end
  end
  if more ~= 0 then slots_not_counted(it, key, more) end
end

-- A field of `virtual_times`. A key without a lease takes no slots beside.
function Rows.of_key(it, name, field)
  local what, key = string.match(field, "^(%a+) (.*)$")
  if what == "saving" then return Waits.saving(it, name, field) end
  if what ~= "beside" then return end
  Check.flag(it, "slots")
  local beside = tonumber(redis.call("HGET", it.ctx.prefix .. Keys.VIRTUAL_TIMES, field) or 0)
  if beside ~= 0 and Slots.leases(it.ctx, key) == 0 then slots_not_counted(it, key, -beside) end
end

-- A field of the hash of unique keys: `key KEY` or `task TAG`.
function Rows.unique(it, _, field)
  local what, name = string.match(field, "^(%a+) (.*)$")
  local value = redis.call("HGET", it.ctx.prefix .. Keys.UNIQUE, field)
  local tag = what == "task" and name or string.match(value or "", "^%d+ (.+)$")
  if not value or Tasks.is_known(it.ctx, tag) then return end
  Check.found(it, "unique_without_task", Keys.UNIQUE, field, function()
    redis.call("HDEL", it.ctx.prefix .. Keys.UNIQUE, field)
  end)
end
