--[[
  claim: lease the next tasks that may start, in their fair order, or return how long to sleep.

  A claim first settles the ends that the caller sends. Then it does a bounded part of the work that is due
  (schedule.lua).

  Then the claim takes from the queues in turn, beginning with the first. pick.lua finds each task. If passing is
  strict, the claim takes from one queue after the other.

  If the memory was lost since the caller's epoch, the claim leases nothing. No limit counts the leases of the
  caller until renew.lua has entered them again.

  args[1]  owner          str  the calling process; its last letters and digits are the nonce of its leases
  args[2]  number         str  of this request; the same number again gives the same answer
  args[3]  want           int  most tasks
  args[4-8] settings      any  of the worker (Tenants.rules_of)
  args[9]  frozen_ms      str  "" in production (server TIME); set only by tests
  args[10] passing        str  what this process does not take (pick.lua), and the state of the rings (rings.lua), or ""
  args[11] known_epoch    str  the epoch of the caller, or ""
  args[12] fairness_by    str  what a task charges, "tasks", "cost" or "runtime"
  args[13] snooze_ms      int  longest wait for a slot of a task that is put back
  args[14] scope          str  what a rank orders, the tasks of a "tenant" or of a "queue". After "queue" may follow the
                               time after which a task goes as one of the highest rank, in ms
  args[15] copies_ms      int  of a promoter: how long the memory of copies is kept, otherwise ""
  args[16] end_count      int  how many ends follow
  args[17] sent           str  "first" if the caller has not sent this number before, otherwise "". To look for an answer
                               costs 1.8 % of a claim of one, and 3.6 % of a claim that finds nothing
  args[18+] values        str  the ends, pairs as for settle.lua, and then the queues in their order

  Returns `sleep_ms epoch length passed`, and then `length text` for each task.
  - sleep_ms is 0 if there is more to do at once.
  - passed is "", or the places that the claim passed over, as JSON. In a partition it is the answer of rings.lua.
  - `text` is `lease attempt deaths keys rank waited limit length queue` and then the message.
  - keys has every key of which the task holds a slot, with commas. The tenant's comes first. Amounts follow a key as in a
    row of `running` (tasks.lua).
  - waited is the time for which the task waited, in ms, or "". limit is the key of the last limit that was reported to
    reject it, or "".
  - Each length is the number of bytes in the text after it.
]]
local MOVES_AT_MOST = 64 -- of one call, without the work that is due
-- This is the longest sleep, because a wake-up may be lost with the worker that took it. A sleep is also at most a
-- third of a lease, because the logical clock makes no longer step.
local SLEEP_MS = 1000
-- The caller enters its leases again within this time.
local ENTERED_MS = 10

-- One claim takes about this much. A task weighs one, one more for each of its limits, and one more for each full
-- UNIT_BYTES of its message.
local TAKEN_AT_MOST = 256
local UNIT_BYTES = 16384

-- The answer is one string, because a client reads each element of a list as an answer of its own.
local function as_answer(sleep_ms, epoch_text, passed, tasks)
  return string.format("%.0f ", sleep_ms) .. epoch_text .. " " .. #passed .. " " .. passed .. table.concat(tasks)
end

-- Returns the names of the leases that this claim number was given before, because its answer may have been lost. It
-- returns nil if the number is a new one.
local function given_before(ctx, owner, number)
  local last = redis.call("GET", ctx.prefix .. Keys.LAST_ANSWER .. owner) or ""
  local last_number, last_leases = string.match(last, "^(%S+) (.*)$")
  if last_number ~= number then return nil end
  return last_leases
end

register("claim", {"allow-oom"}, function(keys, args)
  local ctx, owner, number = {prefix = keys[1], memo = {}, result = {}}, args[1], args[2]
  local want, end_count = tonumber(args[3]), tonumber(args[16])
  local frozen_ms, passing, known_epoch = args[9], args[10], args[11]
  local scope, aging = string.match(args[14], "^(%a+) ?(%d*)$")

  if not string.match(owner, "^%S*%w$") then
    return redis.error_reply("claim: expected an owner without a space, a digit last, got: " .. owner)
  end

  local rules, flags, epoch = Tenants.rules_of(ctx, args, 4, frozen_ms)
  local epoch_text = string.format("%.0f", epoch)
  rules.owner, rules.nonce, rules.ends_at = owner, string.match(owner, "%w+$"), rules.logical + rules.lease_ms
  rules.fairness_by, rules.snooze_ms = args[12], tonumber(args[13])
  ctx.memo.virtual, ctx.result.clears = {}, {}
  rules.expiring, rules.kept_run_times, rules.promotes = flags.expiring, flags.run_times, tonumber(args[15])
  rules.lets_all_start = rules.promotes and rules.enforcement ~= "on"
  local first_queue = 18 + 2 * end_count
  local all_queues, sent = {unpack(args, first_queue)}, passing ~= "" and cjson.decode(passing) or nil
  local ring = Rings.read(sent, all_queues, ctx)
  for index = 18, first_queue - 1, 2 do
    Settle.settle(ctx, rules, args[index], args[index + 1])
  end
  Leases.open_freed(ctx, rules)
  if known_epoch ~= "" and known_epoch ~= epoch_text then
    Stats.write_minute(ctx, rules)
    return as_answer(ENTERED_MS, epoch_text, "", {})
  end

  local answer, leases, taken = {}, {}, 0
  local function tell(lease, task, keys, message)
    local _, commas = string.gsub(keys, ",", "")
    -- A format would end a name at its first zero byte.
    local text = lease .. " " .. task.attempt .. " " .. task.deaths .. " " .. keys .. " " .. task.rank .. " " .. Start.waited(task, rules) .. " "
      .. #task.queue .. " " .. task.queue .. message
    leases[#leases + 1], answer[#answer + 1] = lease, #text .. " " .. text
    taken = taken + 1 + commas + math.floor(#message / UNIT_BYTES)
  end

  local given = args[17] ~= "first" and given_before(ctx, owner, number)
  if given then
    for lease in string.gmatch(given, "%S+") do
      local row, tag = Tasks.read_running(ctx, lease)
      local task = row and Tasks.read(ctx, tag)
      if task then
        task.attempt = row.attempt
        tell(lease, task, Tasks.keys_with(row.keys, row.amounts), Tasks.message_of(ctx, tag))
      end
    end
    Stats.write_minute(ctx, rules)
    return as_answer(0, epoch_text, "", answer)
  end

  local longest = math.floor(rules.lease_ms / 3)
  -- A gate that parks a task wakes its own promoter. The others look again after this time.
  if not (rules.promotes and Queues.is_empty(ctx, all_queues[1])) then longest = math.min(SLEEP_MS, longest) end
  local more, sleep_ms = Schedule.do_what_is_due(ctx, all_queues, rules, longest)
  -- From here on no lease ends, and no number changes.
  ctx.memo.held, ctx.memo.limits, ctx.memo.windows = {}, {}, {}
  local queues, without = Active.with_tasks(ctx, all_queues)
  queues = Queues.not_ended(ctx, queues, rules.now)
  local skips, shares = Pick.read_skips(sent, rules.limited and Pick.are_local(ctx, queues, rules))
  local budget = {moves = MOVES_AT_MOST, looks = MOVES_AT_MOST + Pick.PASSED_AT_MOST,
    queues = queues, left = {}, exhausted = {}, ranked = {}, sleep_ms = sleep_ms}
  local rounds = Pick.begin_rounds(queues, shares, budget)
  if scope == "queue" then budget.ranked, budget.over = Priorities.rank_queues(ctx, queues, aging, rules.now, MOVES_AT_MOST) end

  -- Takes one task of a queue. Returns false if no task of it may start. `find` is Pick.pick or Lending.pick.
  local function take(queue, find)
    local rejected = rules.limited and Pick.check_queue(ctx, queue, rules, budget, skips)
    if rejected and not rejected.action then return false end
    local found = Pick.next_of(ctx, find, queue, rules, budget, skips)
    for _ = 0, budget.moves + 1 do
      if not (found and rejected) then break end
      if not Blocked.spend_move(budget) then return false end
      Blocked.drop_or_reschedule(ctx, found, rejected, rules, budget)
      found = Pick.next_of(ctx, find, queue, rules, budget, skips)
    end
    if not found or ring and Rings.is_behind(ctx, ring, found, budget.ranked[queue]) then return false end
    local lease, task, message = Start.start(ctx, found, rules, budget)
    if not lease then return true end
    if skips then Pick.note_taken(skips, task) end
    if rules.traced and not rules.promotes then Events.emit_started(ctx, task, rules) end
    tell(lease, task, Tasks.keys_with(Tasks.keys_of(task.key, task.limits), task.amounts), message)
    return true
  end

  -- Lets the queues of rounds have turns while more than `spare` places are left. A turn takes a task, or it is the last
  -- turn of its queue in a round. There are at most four rounds.
  local function take_turns(turns, find, spare)
    for _ = 1, want + 4 * #budget.queues do
      local queue = want - #leases > spare and taken < TAKEN_AT_MOST and Pick.queue_of(turns, budget)
      if not queue then break end
      Pick.end_turn(turns, take(queue, find))
    end
  end
  take_turns(rounds, Pick.pick, 0)
  local passed = skips and skips.places or {}
  -- While something is due or was not looked at, the claim does not know whether it finds nothing else. In a partition it
  -- never knows, because tenants of others may wait.
  if ctx.bursts and not (ring or more or sleep_ms <= 0 or budget.over) and #leases < want then
    local spare = math.min(want, shares.spare or 0)
    take_turns(Pick.begin_rounds(queues, {rooms = rounds.rooms, strict = shares.strict}, budget), Lending.pick, spare)
    -- What this process keeps back is for others. It does not listen to the wake-ups that it leaves for them.
    for index = 1, want - #leases <= spare and spare > 0 and #budget.queues or 0 do
      local queue = budget.queues[index]
      if Lending.is_open(ctx, queue) then passed[queue] = passed[queue] or 0 end
    end
  end
  if #leases > 0 then
    local last_answer = number .. " " .. table.concat(leases, " ")
    redis.call("SET", ctx.prefix .. Keys.LAST_ANSWER .. owner, last_answer, "PX", 2 * rules.lease_ms)
  end
  if Saving.look_now(ctx, rules) then budget.over = true end
  for index = 1, #budget.queues do
    local queue = budget.queues[index]
    local nobody = Active.wake_next(ctx, queue, rules.limited, budget.exhausted[queue])
    local virtual = ctx.result.clears[queue] and ctx.memo.virtual[queue]
    Active.clear_debts(ctx, queue, virtual, #leases, nobody and #leases < want)
  end
  if #leases == 0 then Active.clear_wakeups(ctx, without) end -- a caller that gets a task does not sleep
  Stats.write_minute(ctx, rules)
  sleep_ms = Schedule.opens_ms(ctx, rules, budget.sleep_ms)
  -- The caller goes on with the ring that is first, which may be another one.
  if more or budget.over or #leases > 0 and not ring then sleep_ms = 0 end
  local places = next(passed) and passed or nil
  local state = ring and Rings.answer(ctx, all_queues, budget.ranked, places, rules) or places and cjson.encode(places) or ""
  return as_answer(sleep_ms, epoch_text, state, answer)
end)
