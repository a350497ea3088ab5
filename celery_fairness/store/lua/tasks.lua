--[[
  tasks: the record of a task. Its head is in `tasks` and its message in `messages`, both by its tag. Every
  other table holds the tag. The message is written once, as the producer sent it, and a claim reads it once.

  A head has fourteen fields with one space between them, and that of a parked task has a route too:

    seq attempt deaths cost rank tenant service tier name limits put blocked id queue [route]

  seq      its place among all tasks of the installation; a task that began to wait earlier has the smaller
  attempt  how often it was claimed, without the claim of a lease that it has now
  deaths   how often its process died after its body began
  cost     what its tenant is charged, before the weight
  rank     0 to 9; 9 goes first
  tenant   as it is written in keys; "" is a system task
  service  "" unless each service counts apart
  tier     the tenant's tier as the producer held it, may be ""
  name     its task's name as it is written in keys; "" if the message's headers have none
  limits   those beside the tier's (limits.lua)
  put      server time (ms) since when it waits in a lane; with a "+" if something of its tenant waited in
           the queue before it; "": its time has not come
  blocked  STRATEGY|KEY of the limit whose rejection was reported; "-": its start was reported too (events.lua);
           STATE|OWNER of a task that ended without a worker (settle.lua)
  id       its task id as it is written in keys; "" if the message's headers have none
  queue    in which it waits, or waited when it was claimed. That of a parked task has a space after it, and then its
           route: the routing key with which it is published again

  `ids` has one tag of each task id, also of tasks that a gate has parked. Several tasks may have one id: a retry has
  the id of the first attempt, and a producer may use an id again and again. `same_id:ID` has the tags of the others, by
  the sequence numbers of their puts. A tag is in one of the two tables, and never moves to the other one. So a task whose
  id is its own has no key of its own, and each call costs the same however many tasks have the id.

  The record is deleted when the task ended and nothing is left to write about its end.
]]

Tasks.SYSTEM = "_system"

-- Returns the key of the tenant's tier limit. The active tenants are stored by this key.
function Tasks.key_of(tenant, service)
  if tenant == "" then return Tasks.SYSTEM end
  if service == "" then return "tenant:" .. tenant end
  return "tenant:" .. tenant .. ":" .. service
end

function Tasks.read_head(tag, head)
  local seq, attempt, deaths, cost, rank, tenant, service, tier, name, limits, put, blocked, id, queue =
    string.match(head,
      "^(%d+) (%d+) (%d+) (%S+) (%d) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (.*)$")
  local route
  if Promotions.is_parked(queue) then queue, route = string.match(queue, "^(%S+) ?(.*)$") end
  return {
    seq = tonumber(seq), tag = tag, attempt = tonumber(attempt), deaths = tonumber(deaths),
    cost = cost, rank = rank, tenant = tenant, service = service, tier = tier, name = name, limits = limits,
    put = put, blocked = blocked, id = id, queue = queue, route = route, key = Tasks.key_of(tenant, service),
  }
end

-- Returns only the server time since when the task of a head waits, or nil if that is not known.
function Tasks.put_of(head)
  return string.match(head, "^%d+ %d+ %d+ %S+ %d %S* %S* %S* %S* %S* (%d+)")
end

-- Returns a task, or nil if its tag is not known.
function Tasks.read(ctx, tag)
  local head = redis.call("HGET", ctx.prefix .. Keys.TASKS, tag)
  return head and Tasks.read_head(tag, head) or nil
end

function Tasks.write(ctx, task)
  redis.call("HSET", ctx.prefix .. Keys.TASKS, task.tag, string.format("%d %d %d ", task.seq, task.attempt, task.deaths)
    .. task.cost .. " " .. task.rank .. " " .. task.tenant .. " " .. task.service .. " " .. task.tier .. " "
    .. task.name .. " " .. task.limits .. " " .. (task.put or "") .. " " .. (task.blocked or "") .. " " .. task.id
    .. " " .. task.queue .. (task.route and " " .. task.route or ""))
end

-- Returns the queue of a task as people see it. A parked task is shown with its route.
function Tasks.shown_queue(task)
  return task.route or task.queue
end

-- Returns the place of a task that begins to wait now, among all tasks of the installation.
function Tasks.next_seq(ctx)
  return redis.call("HINCRBY", ctx.prefix .. Keys.CLOCK, "sequence", 1)
end

-- A task is known from its put until its record is deleted.
function Tasks.is_known(ctx, tag)
  return redis.call("HEXISTS", ctx.prefix .. Keys.TASKS, tag) == 1
end

function Tasks.message_of(ctx, tag)
  return redis.call("HGET", ctx.prefix .. Keys.MESSAGES, tag) or ""
end

-- Makes a task known by its id.
function Tasks.add_id(ctx, task)
  if task.id == "" or redis.call("HSETNX", ctx.prefix .. Keys.IDS, task.id, task.tag) == 1 then return end
  redis.call("ZADD", ctx.prefix .. Keys.SAME_ID .. task.id, task.seq, task.tag)
end

function Tasks.remove_id(ctx, id, tag)
  if id == "" then return end
  if redis.call("HGET", ctx.prefix .. Keys.IDS, id) == tag then
    redis.call("HDEL", ctx.prefix .. Keys.IDS, id)
  else
    redis.call("ZREM", ctx.prefix .. Keys.SAME_ID .. id, tag)
  end
end

-- Stores the message of a new task, and that its service exists. Returns false if the task is known.
function Tasks.add_message(ctx, task, message)
  if redis.call("HSETNX", ctx.prefix .. Keys.MESSAGES, task.tag, message) == 0 then return false end
  if task.service ~= "" then redis.call("HSET", ctx.prefix .. Keys.CLOCK, "service:" .. task.service, 1) end
  return true
end

-- Returns tags of an id, and where the next page ends, which is "" if there is none. The first page ends at "". It has
-- the tag of `ids`, and at most `most` of the others. Pages go from the newest put on. The tags of a page go from the
-- oldest put on, but that of `ids` comes first. The id of a task without one is its tag.
function Tasks.tags_of(ctx, id, last, most)
  local first = last == "" and redis.call("HGET", ctx.prefix .. Keys.IDS, id)
  local some = redis.call("ZREVRANGEBYSCORE", ctx.prefix .. Keys.SAME_ID .. id, last == "" and "+inf" or "(" .. last, "-inf",
    "WITHSCORES", "LIMIT", 0, most)
  local tags = {first or nil}
  for index = #some - 1, 1, -2 do tags[#tags + 1] = some[index] end
  if #tags == 0 and last == "" then
    local task = Tasks.read(ctx, id)
    return task and task.id == "" and {id} or tags, ""
  end
  return tags, #some == 2 * most and some[#some] or ""
end

-- Deletes the record of a task.
function Tasks.delete(ctx, tag, id)
  redis.call("HDEL", ctx.prefix .. Keys.TASKS, tag)
  redis.call("HDEL", ctx.prefix .. Keys.MESSAGES, tag)
  Tasks.remove_id(ctx, id, tag)
  Unique.give(ctx, tag)
end

-- Deletes the record of a task that may still expire.
function Tasks.forget(ctx, task)
  redis.call("ZREM", ctx.prefix .. Keys.EXPIRES .. task.queue, task.tag)
  Tasks.delete(ctx, task.tag, task.id)
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

--[[
  A row of `running` is that of one lease: ATTEMPT.NONCE OWNER STATE@SINCE KEYS CHARGE NAME ID QUEUE.

  - The field is the tag of the claimed task. If the task is not here, it is the name of the lease (leases.lua).

  - ATTEMPT.NONCE ends the name of its lease.
  - STATE is claimed, begun or acked, and promoted or sent of a parked task (promotions.lua). Any other lease whose
    task is not here is held. SINCE is when the lease began (start.lua).
  - KEYS are those in which its lease counts, with commas between them. The tenant's comes first. If the task takes more
    than one of a key, the key is followed by `*` and the amounts (numbers.lua).
  - CHARGE is what its tenant was charged, if its end corrects that (start.lua), otherwise "". If the task is not
    here, it is the limits of the task.
  - NAME and ID are those of the head. So a call that receives a usual end does not read the head.
  - QUEUE is that of a task that is not here, otherwise "".
]]

-- Returns the keys of a row as its text has them. `amounts` is nil if the task takes one of each.
function Tasks.keys_with(keys, amounts)
  if not amounts then return keys end
  return (string.gsub(keys, "[^,]+", function(key) return amounts[key] and key .. "*" .. amounts[key] end))
end

-- Returns the keys of a text, and the amounts by key as texts, or nil if there are none.
function Tasks.keys_without(text)
  if not string.find(text, "*", 1, true) then return text, nil end
  local amounts = {}
  local keys = string.gsub(text, "([^,*]+)%*([^,]*)", function(key, numbers)
    amounts[key] = numbers
    return key
  end)
  return keys, amounts
end

function Tasks.write_running(ctx, field, row)
  redis.call("HSET", ctx.prefix .. Keys.RUNNING, field,
    row.attempt .. "." .. row.nonce .. " " .. row.owner .. " " .. row.state .. row.since .. " "
      .. Tasks.keys_with(row.keys, row.amounts) .. " " .. row.charge .. " " .. row.name .. " " .. row.id .. " " .. row.queue)
end

function Tasks.read_row(text)
  local attempt, nonce, owner, state, since, keys, charge, name, id, queue = string.match(text,
    "^(%d+)%.(%w+) (%S+) (%a+)(%S*) (%S+) (%S*) (%S*) (%S*) (.*)$")
  local plain, amounts = Tasks.keys_without(keys)
  return {attempt = attempt, nonce = nonce, owner = owner, state = state, since = since, keys = plain, amounts = amounts,
    charge = charge, name = name, id = id, queue = queue}
end

-- Returns only the owner and the state of a row.
function Tasks.owner_of(text)
  return string.match(text, "^%S+ (%S+) (%a+)")
end

-- Returns the tag of a lease, and the text of its claimed task's row, or nil if the lease is not its own now.
function Tasks.text_of_running(ctx, lease)
  local tag, attempt = string.match(lease, "^(.+)%.(%d+%.%w+)$")
  local text = tag and redis.call("HGET", ctx.prefix .. Keys.RUNNING, tag)
  if not text or string.sub(text, 1, #attempt + 1) ~= attempt .. " " then return tag, nil end
  return tag, text
end

-- Returns the row of a claimed task that has this lease, or nil if the lease is not its own now, and its tag.
function Tasks.read_running(ctx, lease)
  local tag, text = Tasks.text_of_running(ctx, lease)
  return text and Tasks.read_row(text), tag
end

-- Returns the row of a lease whose task is not here, or nil. The tag of a claimed task may look like a lease.
function Tasks.read_held(ctx, lease)
  local text = redis.call("HGET", ctx.prefix .. Keys.RUNNING, lease)
  local row = text and Tasks.read_row(text)
  return row and row.state == "held" and row or nil
end

-- Returns the row of any lease, or nil.
function Tasks.row_of(ctx, lease)
  return Tasks.read_running(ctx, lease) or Tasks.read_held(ctx, lease)
end
