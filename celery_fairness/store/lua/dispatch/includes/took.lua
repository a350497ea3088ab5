--[[
  took: how long tasks of one kind hold their places, as far as this call has heard of ends.

  A row of `running` says since when its task holds its place, by the logical clock, and what tasks of
  its kind took lately where the call that started it heard of the end of one: "@MS" or "@MS~MEAN". So
  the mean goes on from task to task, and costs no command.
]]

-- The part that the last run has in a mean is one of so many.
local TOOK_PARTS = 8

-- A task of a kind has ended well that held its place since then.
local function note_took(rules, kind, since)
  local began, mean = string.match(since, "^@(%d+)~?(%d*)$")
  -- A row of an older version does not say it.
  if not began then return end
  -- The clock does not note its shortest steps, and the server's may have gone back.
  local took = math.max(0, rules.logical - tonumber(began))
  local means = rules.took or {}
  local known = means[kind] or tonumber(mean)
  means[kind] = known and known + (took - known) / TOOK_PARTS or took
  rules.took = means
end

-- What the row of a task says that starts now.
local function since_now(rules, kind)
  local mean = rules.took and rules.took[kind]
  rules.since = rules.since or string.format("@%.0f", rules.logical)
  return mean and rules.since .. string.format("~%.0f", mean) or rules.since
end
