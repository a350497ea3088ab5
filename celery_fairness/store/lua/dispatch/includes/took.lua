--[[
  took: how long tasks of one kind hold their places, as far as this call has heard of ends.

  A row of `running` says since when its task holds its place, by the logical clock, and what tasks of
  its kind took lately, where that is known: "@MS" or "@MS~MEAN". It is known to a call that heard of the
  end of one, so the mean goes on from task to task and costs no command. Where ends are told by themselves,
  for places are free and no claim waits for one, `took` in the clock has it for the claims that come:
  "KIND~MEAN" of the last kinds, with spaces.
]]

-- The part that the last run has in a mean is one of so many.
local TOOK_PARTS = 8
-- Kinds that are kept between calls.
local TOOK_KINDS = 8

-- A task of a kind has ended well that held its place since then.
local function note_took(rules, kind, since)
  local began, mean = string.match(since, "^@(%d+)~?(%d*)$")
  -- The clock does not note its shortest steps, and the server's may have gone back.
  local took = math.max(0, rules.logical - tonumber(began))
  local means = rules.took or {}
  local known = means[kind] or tonumber(mean)
  if not means[kind] then means[#means + 1] = kind end
  means[kind] = known and known + (took - known) / TOOK_PARTS or took
  rules.took = means
end

-- Keeps what this call has heard for those that start tasks; `kept` is what was kept before.
local function keep_took(prefix, rules, kept)
  local means, words = rules.took, {}
  if not means then return end
  for index = 1, TOOK_KINDS do
    local kind = means[index]
    words[index] = kind and string.format("%s~%.0f", kind, means[kind])
  end
  kept = kept or ""
  for kind, mean in string.gmatch(kept, "([^ ~]*)~(%d+)") do
    if not means[kind] and #words < TOOK_KINDS then words[#words + 1] = kind .. "~" .. mean end
  end
  redis.call("HSET", prefix .. "clock", "took", table.concat(words, " "))
end

-- What the row of a task says that starts now.
local function since_now(rules, kind)
  local mean = rules.took and rules.took[kind]
  if not mean and rules.kept_took then
    for known, ms in string.gmatch(rules.kept_took, "([^ ~]*)~(%d+)") do
      if known == kind then mean = tonumber(ms) end
    end
  end
  rules.since = rules.since or string.format("@%.0f", rules.logical)
  return mean and rules.since .. string.format("~%.0f", mean) or rules.since
end
