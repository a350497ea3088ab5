--[[
  claim: lease the next tasks that may start, the fairest first, or say how long to sleep.

  It first hears what ended, and does a bounded part of what is due: leases that ended by themselves,
  tasks whose time came, tenants that were found full before the last news, limits whose time came.
  Then it takes from the queues in turn, beginning with the first, what find.lua finds; if passing is
  strict, from one queue after the other.

  Where the memory was lost since the epoch that the caller knows it leases nothing: what the caller
  holds counts for no limit until it is entered again (renew.lua).

  KEYS[1]  prefix         str  what every key of the installation begins with

  ARGV[1]  owner          str  the process that asks; how it ends is the nonce of its leases
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
  ARGV[12] fairness_by    str  what a task charges: "tasks", "cost" or "runtime"
  ARGV[13] snooze_ms      int  longest wait for a slot of what is put back
  ARGV[14] scope          str  what a rank orders: the tasks of a "tenant", or of a "queue"
  ARGV[15] told           int  ends that it is told
  ARGV[16+] words         str  the ends, triples as for settle.lua; the queues, in their order

  Returns "sleep_ms epoch length passed", and behind it of each task "length told": sleep_ms is 0 where
  there is more to do at once; passed is "", or as JSON the places that it passed over; told is "lease
  attempt keys rank length queue" .. message: keys are all of which it holds a slot, the tenant's first,
  with commas; each length is that of what stands behind it, in bytes.
]]
--- @include "ends"
--- @include "serve"
--- @include "find"
--- @include "due"
--- @include "ended"
--- @include "tick"
--- @include "answering"
--- @include "rounds"
--- @rarely read_record write_record without_whole read_running ring_bell enter enter_again
--- @rarely forget_debts forget_ring back_name note note_first paused_ms override_of tenant_limit
--- @rarely note_steering due_again close count_refusal fill leave_ring note_charge took pass_over
--- @rarely bring_in weigh server_id forget_part spend_pass
--- @later limited "limited"
--- @later rare "rare"
--- @later timed "correcting"
local prefix, owner, number = KEYS[1], ARGV[1], ARGV[2]
local want, lease_ms, told = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[15])
local frozen_ms, passing, known_epoch, scope = ARGV[9], ARGV[10], ARGV[11], ARGV[14]

local MOVES_AT_MOST = 64 -- of one call, beside what is due
-- Longest sleep: a bell may be lost with who heard it, and the logical clock does not step further.
local SLEEP_MS = 1000
-- So soon the caller has entered again what it holds.
local ENTERED_MS = 10

if not string.match(owner, "^%S*%w$") then
  return redis.error_reply("claim: expected an owner without a space, a digit last, got: " .. owner)
end

local logical, now, epoch, said = tick(prefix .. "clock", lease_ms, frozen_ms)
local epoch_text = string.format("%.0f", epoch)
local rules = {
  logical = logical, enforcement = ARGV[5], default_tier = ARGV[6], default_limit = ARGV[7],
  max_deliveries = tonumber(ARGV[8]), owner = owner, ends_at = logical + lease_ms, virtual = {},
  nonce = string.match(owner, "%w+$"), snooze_ms = tonumber(ARGV[13]),
  version = tonumber(redis.call("HGET", prefix .. "news", "version") or 0),
  limited = said.limited, now = now, steered = said.steered, expiring = said.expiring,
  queued = said.queued, fairness_by = ARGV[12], timed = said.timed, paced = said.paced, watched = said.watched,
  kept_took = said.took,
}
ranked = said.ranked
local first_queue = 16 + 3 * told
for index = 16, first_queue - 1, 3 do
  settle(prefix, rules, ARGV[index], ARGV[index + 1], ARGV[index + 2])
end
open_freed(prefix, rules)
if known_epoch ~= "" and known_epoch ~= epoch_text then
  return as_answer(ENTERED_MS, epoch_text, "", {})
end

local answer, leases, taken = {}, {}, 0
local function tell(lease, queue, task, message)
  leases[#leases + 1] = lease
  taken = taken + weight_of(task, message)
  answer[#answer + 1] = as_told(lease, queue, task, message)
end

local given = given_before(prefix, owner, number)
if given then
  for index = 1, #given do tell(given[index].lease, given[index].queue, read_record(given[index].record)) end
  return as_answer(0, epoch_text, "", answer)
end

local all_queues = {unpack(ARGV, first_queue)}
local look, shares = read_passing(passing, rules.queued and limited().are_local(prefix, all_queues, rules))
local more, sleep_ms = do_what_is_due(prefix, all_queues, rules, math.min(SLEEP_MS, math.floor(lease_ms / 3)))
rules.held, rules.limits, rules.passed = {}, {}, {} -- from here on no lease ends, and no number changes
local queues, without = with_tasks(prefix, all_queues)
if said.unused then queues = not_ended(prefix, queues, now) end
local turns = {moves = MOVES_AT_MOST, looks = MOVES_AT_MOST + PASSED_AT_MOST,
  queues = queues, left = {}, shut = {}, noted = {}, ranked = {}, sleep_ms = sleep_ms}
local rounds = begin_rounds(queues, shares, turns)
if scope == "queue" then turns.ranked, turns.over = ranks().rank_queues(prefix, queues, MOVES_AT_MOST) end

-- Takes one task of a queue. Returns false where nothing of it may start.
local function take(queue)
  local refused = rules.queued and limited().look_at_queue(prefix, queue, rules, turns, look)
  if refused and not refused.action then return false end
  local found = next_of(prefix, queue, rules, turns, look)
  for _ = 0, turns.moves + 1 do
    if not (found and refused) then break end
    if not limited().spend(turns) then return false end
    limited().act(prefix, queue, found.key, found.part, found.group, found.others, refused, rules, turns)
    found = next_of(prefix, queue, rules, turns, look)
  end
  if not found then return false end
  local lease, task, message = serve(prefix, queue, found, rules, turns)
  if not lease then return true end
  if look then took(look, task) end
  if rules.watched then rare().tell_started(prefix, queue, task, message, rules) end
  tell(lease, queue, task, message)
  return true
end

-- Each turn takes a task or is the last of its queue in one of at most four rounds.
for _ = 1, want + 4 * #turns.queues do
  local queue = #leases < want and taken < TAKEN_AT_MOST and queue_of(rounds, turns)
  if not queue then break end
  turn_over(rounds, take(queue))
end
if #leases > 0 then
  redis.call("SET", prefix .. "reply:" .. owner, number .. " " .. table.concat(leases, " "), "PX", 2 * lease_ms)
end
for index = 1, #turns.queues do
  local queue = turns.queues[index]
  local nobody = pass_on(prefix, queue, rules.limited, turns.shut[queue])
  forget_passed(prefix, queue, rules.virtual[queue], #leases, nobody and #leases < want)
end
if #leases == 0 then hush(prefix, without) end -- who was given something does not sleep
write_minute(prefix, rules)
sleep_ms = opens_ms(prefix, rules, turns.sleep_ms)
if more or turns.over or #leases > 0 then sleep_ms = 0 end
local passed = look and next(look.places) and cjson.encode(look.places) or ""
return as_answer(sleep_ms, epoch_text, passed, answer)
