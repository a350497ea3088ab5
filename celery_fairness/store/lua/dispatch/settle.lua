--[[
  settle: what became of claimed tasks (ends.lua), where no claim takes it along.

  KEYS[1]  prefix         str  what every key of the installation begins with

  ARGV[1]  lease_ms       int  how long a lease lives without a renewal
  ARGV[2]  enforcement    str  "on", "observe" or "off"
  ARGV[3]  default_tier   str  for a tier that is not known
  ARGV[4]  default_limit  str  of the default tier, an integer or "unlimited"
  ARGV[5]  max_deliveries int  deaths after which a task goes to the dead letters; 0: never
  ARGV[6]  frozen_ms      str  "" in production (server TIME); set only by tests
  ARGV[7+] ends           str  triples: the lease; what became of it; its lane as "key rank queue"
             begun  the body runs          acked  and the message is acknowledged
             done   it ended               head   it waits again, in its place
             tail   it waits again, last   died   its process died: as head, until too often
             unreadable    its message cannot be read: it is a dead letter
           each with a "-" behind it where its body has not begun: its starts do not count

  Returns the codes of again.lua, one for each.
]]
--- @include "ends"
--- @include "tick"
--- @later limited "limited"
--- @later rare "again"
--- @later timed "correcting"
local prefix, lease_ms, frozen_ms = KEYS[1], tonumber(ARGV[1]), ARGV[6]

local logical, now, _, said = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {
  logical = logical,
  enforcement = ARGV[2], default_tier = ARGV[3], default_limit = ARGV[4],
  max_deliveries = tonumber(ARGV[5]),
  version = tonumber(redis.call("HGET", prefix .. "news", "version") or 0),
  limited = said.limited, now = now, steered = said.steered,
  timed = said.timed, paced = said.paced, watched = said.watched,
}
ranked = said.ranked

local answer = {}
for index = 7, #ARGV, 3 do
  answer[#answer + 1] = settle(prefix, rules, ARGV[index], ARGV[index + 1], ARGV[index + 2])
end
keep_took(prefix, rules, said.took)
open_freed(prefix, rules)
return answer
