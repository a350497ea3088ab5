--[[
  answering: how much one claim takes, and how it returns the tasks that it has leased.

  A task weighs one, and one more for each of its limits. The units of its message are added (tasks.lua).
]]

Answer.TAKEN_AT_MOST = 256

function Answer.weight_of(task, message)
  local _, limits = string.gsub(task.limits, "[^,]+", "")
  return 1 + limits + Tasks.units_of(message)
end

function Answer.as_told(lease, queue, task, message)
  -- A format would end a name at its first zero byte.
  local told = lease .. " " .. task.attempt .. " " .. Tasks.keys_of(task.key, task.limits) .. " " .. task.rank .. " "
    .. #queue .. " " .. queue .. message
  return #told .. " " .. told
end

-- The answer is one string, because a client reads each element of a list as an answer of its own.
function Answer.as_answer(sleep_ms, epoch_text, passed, told)
  return string.format("%.0f ", sleep_ms) .. epoch_text .. " " .. #passed .. " " .. passed .. table.concat(told)
end

-- Returns the rows that this claim number was given before, because its answer may have been lost. It returns
-- nil if the number is a new one.
function Answer.given_before(ctx, owner, number)
  local last = redis.call("GET", ctx.prefix .. "reply:" .. owner) or ""
  local last_number, last_leases = string.match(last, "^(%S+) (.*)$")
  if last_number ~= number then return nil end
  local given = {}
  for lease in string.gmatch(last_leases, "%S+") do
    local row = redis.call("HGET", ctx.prefix .. "running", lease)
    if row then
      local _, _, queue, record = Tasks.read_running(row)
      given[#given + 1] = {lease = lease, queue = queue, record = record}
    end
  end
  return given
end
