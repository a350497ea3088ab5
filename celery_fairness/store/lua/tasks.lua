--[[
  A record is one waiting task as text: thirteen fields with one space between them, a newline, and the
  message as the producer sent it.

    seq tag attempt deaths cost rank tenant service tier kind limits put blocked \n message

  seq      its place among all tasks of the installation; a task that began to wait earlier has the smaller
  tag      the delivery tag, which no other message has
  attempt  how often it was claimed
  deaths   how often its process died after its body began
  cost     what its tenant is charged, before the weight
  rank     0 to 9; 9 goes first
  tenant   as it is written in keys; "" is a system task
  service  "" unless each service counts apart
  tier     the tenant's tier as the producer held it, may be ""
  kind     name of the task as it is written in keys; "" if the message's headers have no name
  limits   those beside the tier's (limits.lua)
  put      server time (ms) since when it waits in a lane; with a "+" if something of its tenant waited in
           the queue before it; "": its time has not come
  blocked  STRATEGY|KEY of the limit whose rejection was reported; "-": its start was reported too (events.lua)
]]

Tasks.SYSTEM = "_system"

-- Returns the key of the tenant's tier limit. This key is the member of the ring.
function Tasks.key_of(tenant, service)
  if tenant == "" then return Tasks.SYSTEM end
  if service == "" then return "tenant:" .. tenant end
  return "tenant:" .. tenant .. ":" .. service
end

function Tasks.read_record(record)
  local seq, tag, attempt, deaths, cost, rank, tenant, service, tier, kind, limits, put, blocked, at =
    string.match(record,
      "^(%d+) (%S+) (%d+) (%d+) (%S+) (%d) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*)\n()")
  return {
    seq = tonumber(seq), tag = tag, attempt = tonumber(attempt), deaths = tonumber(deaths),
    cost = cost, rank = rank, tenant = tenant, service = service, tier = tier,
    kind = kind, limits = limits, blocked = blocked, put = put, key = Tasks.key_of(tenant, service),
  }, string.sub(record, at)
end

-- Reads a record that starts. Returns the fields that a claim needs, the message, and the record of this
-- attempt.
function Tasks.start_record(record, key)
  local head, tag, attempt, tail, cost, rank, kind, limits, put, blocked, at = string.match(record,
    "^(%d+ (%S+)) (%d+)( %d+ (%S+) (%d) %S* %S* %S* (%S*) (%S*) (%S*) (%S*)\n)()")
  if blocked ~= "" then tail = string.sub(tail, 1, -#blocked - 2) .. "-\n" end
  attempt = tonumber(attempt) + 1
  local message = string.sub(record, at)
  return {tag = tag, attempt = attempt, cost = cost, rank = rank, kind = kind,
    limits = limits, blocked = blocked, put = put, key = key}, message, head .. " " .. attempt .. tail .. message
end

function Tasks.write_record(task, message)
  return string.format("%d %s %d %d %s %s %s %s %s %s %s %s %s\n", task.seq, task.tag, task.attempt,
    task.deaths, task.cost, task.rank, task.tenant, task.service, task.tier, task.kind, task.limits,
    task.put or "", task.blocked or "") .. message
end

-- Returns every key of which a task holds a slot while it runs. The keys have commas between them, and each is
-- there once. The tenant's comes first.
function Tasks.keys_of(tenant_key, limits)
  if limits == "" then return tenant_key end
  local keys, seen = {tenant_key}, {[tenant_key] = true}
  for key in string.gmatch("," .. limits, ",([^|]+)|") do
    if not seen[key] then
      seen[key] = true
      keys[#keys + 1] = key
    end
  end
  return table.concat(keys, ",")
end

-- Returns the limits without that of the queue as a whole, which a task has only while it runs.
function Tasks.without_whole(limits)
  return (string.gsub(limits, ",?[^,]*|%ag$", ""))
end

-- A row of `running` has the owner, the state and since when it holds its place (start.lua). The length of the
-- queue, the queue and a record follow. The state is claimed, begun or acked.
-- A row of `outcomes` is the last row of its task. Its state is acked, dead, unreadable, dropped, cancelled
-- or expired. The owner of a dropped task is the key of the limit that dropped it.
function Tasks.write_running(owner, state, queue, record, since)
  return owner .. " " .. state .. (since or "") .. " " .. #queue .. " " .. queue .. record
end

function Tasks.read_running(row)
  local owner, state, since, length, at = string.match(row, "^(%S+) (%a+)(%S*) (%d+) ()")
  local record_at = at + tonumber(length)
  return owner, state, string.sub(row, at, record_at - 1), string.sub(row, record_at), since
end

-- Reads from a row of `running` only the task's tag, its tenant's key, all its keys, its kind and since when.
function Tasks.charged_by(row)
  local since, length, at = string.match(row, "^%S+ %a+(%S*) (%d+) ()")
  local tag, tenant, service, kind, limits = string.match(row,
    "^%d+ (%S+) %d+ %d+ %S+ %d (%S*) (%S*) %S* (%S*) (%S*) %S* %S*\n", at + tonumber(length))
  local key = Tasks.key_of(tenant, service)
  return tag, key, Tasks.keys_of(key, limits), kind, since
end

--[[
  weight: by how much one step of a claim counts more than one move.

  - A message that is read counts one more for each full UNIT_BYTES.
  - A lane that is parked or made ready counts one more for each kind that came back.
]]

local UNIT_BYTES = 16384

function Tasks.units_of(message)
  return math.floor(#message / UNIT_BYTES)
end

-- The last step of a claim may cost more moves than were left.
function Tasks.weigh(turns, more)
  turns.moves = math.max(0, turns.moves - more)
end
