--[[
  answering: how much one claim takes, and how it returns the tasks that it has leased.

  A task weighs one, and one more for each of its limits. The units of its message are added (tasks.lua).
]]

Answer.TAKEN_AT_MOST = 256

function Answer.weight_of(keys, message)
  local _, commas = string.gsub(keys, ",", "")
  return 1 + commas + Tasks.units_of(message)
end

function Answer.as_told(lease, task, keys, message)
  -- A format would end a name at its first zero byte.
  local told = lease .. " " .. task.attempt .. " " .. keys .. " " .. task.rank .. " " .. #task.queue .. " " .. task.queue
    .. message
  return #told .. " " .. told
end

-- The answer is one string, because a client reads each element of a list as an answer of its own.
function Answer.as_answer(sleep_ms, epoch_text, passed, told)
  return string.format("%.0f ", sleep_ms) .. epoch_text .. " " .. #passed .. " " .. passed .. table.concat(told)
end

-- Returns the leases that this claim number was given before, because its answer may have been lost. It returns
-- nil if the number is a new one.
function Answer.given_before(ctx, owner, number)
  local last = redis.call("GET", ctx.prefix .. "reply:" .. owner) or ""
  local last_number, last_leases = string.match(last, "^(%S+) (.*)$")
  if last_number ~= number then return nil end
  local given = {}
  for lease in string.gmatch(last_leases, "%S+") do
    local row, tag = Tasks.read_running(ctx, lease)
    local task = row and Tasks.read(ctx, tag)
    if task then
      task.attempt = tonumber(row.attempt)
      given[#given + 1] = {lease = lease, task = task, keys = row.keys}
    end
  end
  return given
end
