--[[
  claim: lease the next tasks that may start, the fairest first, or say how long to sleep.

  It first hears what ended, and does a bounded part of what is due: leases that ended by themselves,
  tasks whose time came, tenants that were found full before the last news. Then it takes from the queues in turn, beginning with the
  first: the tenant with the least virtual time, its first lane, that lane's first task. A tenant at
  its limit leaves the ring and costs nothing until something opens it. A tenant of whom this process
  takes nothing stays where it is.

  Where the memory was lost since the epoch that the caller knows it leases nothing: what the caller
  holds counts for no limit until it is entered again (renew.lua).

  KEYS[1]  prefix         str  what every key of the installation begins with

  ARGV[1]  owner          str  the process that asks
  ARGV[2]  number         str  of this request; the same number again gives the same answer
  ARGV[3]  want           int  most tasks
  ARGV[4]  lease_ms       int  how long a lease lives without a renewal
  ARGV[5]  enforcement    str  "on", "observe" or "off"
  ARGV[6]  default_tier   str  for a tier that is not known
  ARGV[7]  default_limit  str  of the default tier, an integer or "unlimited"
  ARGV[8]  max_deliveries int  deaths after which a task goes to the dead letters; 0: never
  ARGV[9]  frozen_ms      str  "" in production (server TIME); set only by tests
  ARGV[10] passing        str  what this process does not take (passing.lua), or ""
  ARGV[11] known_epoch    str  the epoch the caller knows, or ""
  ARGV[12] told           int  ends that it is told
  ARGV[13+] words         str  the ends, triples as for settle.lua; the queues, in their order

  Returns {"sleep_ms epoch passed", "lease attempt key rank length queue" .. message, ...}: sleep_ms is
  0 where there is more to do at once; passed is "", or as JSON the places that it passed over; length
  is that of the queue's name.
]]
--- @include "ends"
--- @include "serve"
--- @include "passing"
--- @include "later"
--- @include "tick"
local prefix, owner, number = KEYS[1], ARGV[1], ARGV[2]
local want, lease_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
local frozen_ms, passing, known_epoch, told = ARGV[9], ARGV[10], ARGV[11], tonumber(ARGV[12])

-- Moves of each kind that one call makes.
local DUE_AT_MOST = 16
local MOVES_AT_MOST = 64
-- Longest sleep: a bell may be lost with the worker that heard it.
local SLEEP_MS = 1000
-- So soon the caller has entered again what it holds.
local ENTERED_MS = 10

if not string.match(owner, "^%S+$") then
  return redis.error_reply("claim: expected an owner without a space, got: " .. owner)
end

local logical, now, epoch = tick(prefix .. "clock", lease_ms, frozen_ms)
local epoch_text = string.format("%.0f", epoch)
local rules = {
  logical = logical, enforcement = ARGV[5], default_tier = ARGV[6], default_limit = ARGV[7],
  max_deliveries = tonumber(ARGV[8]), owner = owner, lease_ms = lease_ms, virtual = {},
  version = tonumber(redis.call("HGET", prefix .. "news", "version") or 0),
}
local first_queue = 13 + 3 * told
for index = 13, first_queue - 1, 3 do
  settle(prefix, rules, ARGV[index], ARGV[index + 1], ARGV[index + 2])
end
if known_epoch ~= "" and known_epoch ~= epoch_text then
  return {ENTERED_MS .. " " .. epoch_text .. " "}
end

local answer, leases = {""}, {}
local function tell(lease, queue, task, message)
  leases[#leases + 1] = lease
  -- A format would end a name at its first zero byte.
  answer[#answer + 1] = lease .. " " .. task.attempt .. " " .. task.key .. " " .. task.rank .. " "
    .. #queue .. " " .. queue .. message
end

-- The answer to this number was lost on the way.
local reply = prefix .. "reply:" .. owner
local last_number, last_leases = string.match(redis.call("GET", reply) or "", "^(%S+) (.*)$")
if last_number == number then
  for lease in string.gmatch(last_leases, "%S+") do
    local row = redis.call("HGET", prefix .. "running", lease)
    if row then
      local _, _, queue, record = read_running(row)
      tell(lease, queue, read_record(record))
    end
  end
  answer[1] = "0 " .. epoch_text .. " "
  return answer
end

local more = expire(prefix, rules, DUE_AT_MOST) == DUE_AT_MOST
more = judge_anew(prefix, rules, DUE_AT_MOST) == DUE_AT_MOST or more
local sleep_ms = SLEEP_MS
for index = first_queue, #ARGV do
  local wait_ms = bring_in(prefix, ARGV[index], now, DUE_AT_MOST)
  if wait_ms then sleep_ms = math.min(sleep_ms, wait_ms) end
end

local moves, look = MOVES_AT_MOST, read_passing(passing)
local LOOKS_AT_MOST = MOVES_AT_MOST + PASSED_AT_MOST
-- Takes one task of a queue. Returns false where nothing of it may start.
local function take(queue)
  local ring = prefix .. "ring:" .. queue
  for _ = 0, LOOKS_AT_MOST do
    local at = look and look.places[queue] or 0
    local found = redis.call("ZRANGE", ring, at, at, "WITHSCORES")
    local key, start = found[1], tonumber(found[2])
    if not key then return false end
    local lane = look and open_lane(prefix, queue, key, look)
    if look and not lane then
      if not pass_over(look, queue) then break end
    else
      local verdict = judge(prefix, key, rules)
      if verdict.open then
        if verdict.closed then reopen(prefix, key, rules) end
        if verdict.full then count_refusal(prefix, verdict) end
        local lease, task, message = serve(prefix, queue, key, lane, start, verdict.weight, rules)
        tell(lease, queue, task, message)
        if look and look.once[task.kind] then look.never[task.kind] = true end
        return true
      end
      if moves == 0 then break end
      moves = moves - 1
      fill(prefix, queue, key, start, verdict, rules)
    end
  end
  more = true
  return false
end

-- Each turn takes a task or is the last of its queue.
local queues, turn = {unpack(ARGV, first_queue)}, 1
for _ = 1, want + #queues do
  if #leases == want or #queues == 0 then break end
  if turn > #queues then turn = 1 end
  if take(queues[turn]) then turn = turn + 1 else table.remove(queues, turn) end
end
if #leases > 0 then
  redis.call("SET", reply, number .. " " .. table.concat(leases, " "), "PX", 2 * lease_ms)
end
for index = first_queue, #ARGV do pass_on(prefix, ARGV[index]) end
if more or #leases > 0 then sleep_ms = 0 end
local passed = look and next(look.places) and cjson.encode(look.places) or ""
answer[1] = string.format("%.0f %s %s", sleep_ms, epoch_text, passed)
return answer
