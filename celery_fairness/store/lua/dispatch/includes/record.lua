--[[
  A record is one waiting task as text: ten fields with one space between them, a newline, and the
  message as the producer sent it.

    seq tag attempt deaths cost rank tenant service tier kind \n message

  seq      its place among all tasks of the installation: who began to wait earlier has the smaller
  tag      the delivery tag, which no other message has
  attempt  how often it was claimed
  deaths   how often its process died after its body began
  cost     what its tenant is charged, before the weight
  rank     0 to 9; 9 goes first
  tenant   as it is written in keys; "" is a system task
  service  "" unless each service counts apart
  tier     the tenant's tier as the producer knew it, may be ""
  kind     name of the task as it is written in keys; "": the message's headers do not say it
]]

local SYSTEM = "_system"

-- The key of the tenant's tier limit: who stands in the ring.
local function key_of(tenant, service)
  if tenant == "" then return SYSTEM end
  if service == "" then return "tenant:" .. tenant end
  return "tenant:" .. tenant .. ":" .. service
end

local function read_record(record)
  local seq, tag, attempt, deaths, cost, rank, tenant, service, tier, kind, at =
    string.match(record, "^(%d+) (%S+) (%d+) (%d+) (%S+) (%d) (%S*) (%S*) (%S*) (%S*)\n()")
  return {
    seq = tonumber(seq), tag = tag, attempt = tonumber(attempt), deaths = tonumber(deaths),
    cost = tonumber(cost), rank = rank, tenant = tenant, service = service, tier = tier,
    kind = kind, key = key_of(tenant, service),
  }, string.sub(record, at)
end

local function write_record(task, message)
  return string.format("%.0f %s %d %d %.17g %s %s %s %s %s\n", task.seq, task.tag, task.attempt,
    task.deaths, task.cost, task.rank, task.tenant, task.service, task.tier, task.kind) .. message
end

-- A row of `running`: owner, state (claimed, begun, acked), the queue's length, the queue, a record.
-- An obituary is the last one of its task; its state is acked, dead or unreadable.
local function write_running(owner, state, queue, record)
  return owner .. " " .. state .. " " .. #queue .. " " .. queue .. record
end

local function read_running(row)
  local owner, state, length, at = string.match(row, "^(%S+) (%a+) (%d+) ()")
  local record_at = at + tonumber(length)
  return owner, state, string.sub(row, at, record_at - 1), string.sub(row, record_at)
end
