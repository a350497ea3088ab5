--[[
  listing: pages of tasks. They show which tasks wait, run, or are dead letters.

  A page goes through sections, and each section through a table. A position is the end of a page: SECTION, PART, AT and
  MEMBER, and the REST of the fields that HSCAN returned. The next page goes on there.

  | section | state   | order                                                                    | AT, MEMBER      |
  |---------|---------|--------------------------------------------------------------------------|-----------------|
  | dead    | dead    | by queue (PART), the newest first                                        | number, tag     |
  | running | running | of a key (PART) the oldest lease first; otherwise by HSCAN (PART)        | start, lease    |
  | waiting | waiting | the oldest first; with more than LISTED_LANES lanes by HSCAN (PART)     | number, tag     |
  | parked  | parked  | as waiting                                                               | number, tag     |
  | retried | parked  | by queue (PART) and time; of a tenant (PART) the oldest first            | time, member    |
  | delayed | delayed | as retried                                                               | time, member    |

  A task goes through its states against this order: it is delayed, waits, runs, and may be a dead letter. So a task
  that moves while a caller turns pages is on one page at most. A task that keeps its state is on exactly one page. HSCAN
  alone may return a field twice, if most of the table is deleted meanwhile.

  `it` has these fields:
  - filter      tenant, queue and key, each nil if any will do, and the states
  - keys        the keys of the tenants whose tables have all tasks of the filter, or nil
  - most, rows  how many tasks the page has at most, and those that it has
  - left        how many tasks and lanes this call may still look at
  - bytes       how much of messages it may still read
  - backlog     what it keeps while it checks limits (backlog.lua)
]]

-- More lanes than this are not sorted. Each takes about six microseconds.
local LISTED_LANES = 250
-- Tasks that one call looks at. Each takes about fifteen microseconds.
local LISTED_TASKS = 250
-- One command reads this many members.
local BATCH = 100
-- HSCAN returns this many fields at least. More of them may be left for the next page.
local LEAST_COUNT = 10
-- The part of a position at which HSCAN has returned all fields.
local ENDED = "ended"
-- Messages that one call reads, and the largest of them, in bytes. A megabyte takes about ten milliseconds.
local READ_BYTES = 262144
local MESSAGE_BYTES = 65536
-- The first bytes of the text of arguments.
local TEXT_BYTES = 400

--[[
  filters
]]

-- Returns the keys of the tenant of the filter, one for each service, or nil if the filter names none.
local function keys_of(ctx, filter)
  if not filter.tenant then
    local is_tenants = filter.key and (filter.key == Tasks.SYSTEM or string.match(filter.key, "^tenant:"))
    return is_tenants and {filter.key} or nil
  end
  local keys, fields = {Tasks.key_of(filter.tenant, "")}, redis.call("HKEYS", ctx.prefix .. Keys.CLOCK)
  for index = 1, #fields do
    local service = string.match(fields[index], "^service:(.*)$")
    if service then keys[#keys + 1] = Tasks.key_of(filter.tenant, service) end
  end
  return keys
end

-- Returns whether a task counts in a key. `limits` are those beside the tier's.
local function counts_in(it, key, queue, tier_key, limits)
  return tier_key == key or queue == it.key_queue or string.find("," .. limits, "," .. key .. "|", 1, true) ~= nil
end

local function is_wanted(it, task)
  local filter = it.filter
  if filter.tenant and task.tenant ~= filter.tenant then return false end
  if filter.queue and Tasks.shown_queue(task) ~= filter.queue then return false end
  return not filter.key or counts_in(it, filter.key, task.queue, task.key, task.limits)
end

--[[
  rows
]]

-- Returns the first bytes of a text, without a part of a character.
local function first_bytes(text)
  if type(text) ~= "string" then return nil end
  if #text <= TEXT_BYTES then return text end
  local last = TEXT_BYTES
  while last > 0 and string.match(string.sub(text, last + 1, last + 1), "[\128-\191]") do last = last - 1 end
  return string.sub(text, 1, last)
end

local function name_in(value)
  return (type(value) == "string" or type(value) == "number") and tostring(value) or nil
end

-- Adds what the headers of a task's message have. A large message is not read. Returns whether there is a message.
local function add_headers(it, row, tag)
  local size = redis.call("HSTRLEN", it.ctx.prefix .. Keys.MESSAGES, tag)
  if size == 0 or size > MESSAGE_BYTES then return size > 0 end
  it.bytes = it.bytes - size
  local is_read, message = pcall(cjson.decode, Tasks.message_of(it.ctx, tag))
  local headers = is_read and type(message) == "table" and message.headers
  if type(headers) ~= "table" then return true end
  row.id, row.name = name_in(headers.id) or row.id, name_in(headers.task) or row.name
  row.args, row.kwargs = first_bytes(headers.argsrepr), first_bytes(headers.kwargsrepr)
  if type(headers.fairness) == "table" then row.sent_tenant = name_in(headers.fairness.tenant) end
  return true
end

local function add_dead_facts(_, row, task, more)
  local is_unreadable = string.sub(task.blocked, 1, 11) == "unreadable|"
  row.why = not more.has_message and "lost" or is_unreadable and "unreadable" or "deaths"
end

local function add_running_facts(it, row, _, more)
  row.why, row.owner = more.row.state, more.row.owner ~= "-" and more.row.owner or nil
  local since = string.match(more.row.since, "^@(%d+)")
  row.age_ms = since and math.max(0, it.backlog.rules.logical - since)
end

local function add_waiting_facts(it, row, task)
  row.why, row.by = Backlog.closed_by(it.backlog, task)
  local put = tonumber(string.match(task.put, "^%d+"))
  row.age_ms = put and math.max(0, it.backlog.rules.now - put)
end

local function add_delayed_facts(_, row, task, more)
  row.due = tonumber(more.due)
  row.why, row.by = string.match(task.blocked, "^([^|]+)|(.+)$")
end

local function add_retried_facts(_, row, _, more)
  row.due, row.why = tonumber(more.due), "broker"
end

local ROWS = {dead = add_dead_facts, running = add_running_facts, waiting = add_waiting_facts, parked = add_waiting_facts,
  delayed = add_delayed_facts, retried = add_retried_facts}

-- Adds a task to the page, unless the filter leaves it out. Returns false if the page has no room for it.
local function add(it, section, task, more)
  if #it.rows >= it.most or it.bytes <= 0 then return false end
  if not it.detailed then
    it.rows[#it.rows + 1] = {task.tag, more.head}
    return true
  end
  local row = {tag = task.tag, state = section == "retried" and "parked" or section, key = task.key, id = task.id,
    name = task.name, queue = Tasks.shown_queue(task), tenant = task.tenant, rank = tonumber(task.rank),
    tier = task.rank and Backlog.tier_of(it.backlog, task)}
  more.has_message = add_headers(it, row, task.tag)
  ROWS[section](it, row, task, more)
  it.rows[#it.rows + 1] = row
  return true
end

local function add_head(it, section, tag, head, more)
  local task = head and Tasks.read_head(tag, head)
  if not task or not is_wanted(it, task) then return true end
  more.head = head
  return add(it, section, task, more)
end

--[[
  walks: through the parts of a section, a sorted set, a hash, or lanes. `take` looks at one task. It returns false if the
  page has no room for the task. Then the walk returns false too, and `at` is the position before that task.
]]

-- Returns whether the call may look at one more task.
local function may_look(it)
  it.left = it.left - 1
  return it.left >= 0
end

local function by_part(at, names, list)
  table.sort(names)
  for index = 1, #names do
    local name = names[index]
    if name >= at.part then
      if name ~= at.part then at.part, at.at, at.member = name, "", "" end
      if not list(name) then return false end
    end
  end
  return true
end

-- Returns whether a text stands before another one of the same score. Lua would compare them as the server's locale does.
local function stands_before(one, other)
  for index = 1, math.min(#one, #other) do
    local left, right = string.byte(one, index), string.byte(other, index)
    if left ~= right then return left < right end
  end
  return #one < #other
end

-- Returns the index of the first member of a sorted set after a position. `newest` counts from the end.
local function index_after(name, at, newest)
  if at.at == "" then return 0 end
  local low, high, score = 0, redis.call("ZCARD", name), tonumber(at.at)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local place = newest and -middle - 1 or middle
    local member, its = unpack(redis.call("ZRANGE", name, place, place, "WITHSCORES"))
    its = tonumber(its)
    local is_passed = member == at.member
    if not is_passed and its == score then is_passed = stands_before(member, at.member) ~= newest end
    if its ~= score then is_passed = (its < score) ~= newest end
    if is_passed then low = middle + 1 else high = middle end
  end
  return low
end

local function through_set(it, at, name, newest, take)
  local first = index_after(name, at, newest)
  while true do
    local some = newest and redis.call("ZRANGE", name, first, first + BATCH - 1, "REV", "WITHSCORES")
      or redis.call("ZRANGE", name, first, first + BATCH - 1, "WITHSCORES")
    for index = 1, #some, 2 do
      if not may_look(it) or not take(some[index], some[index + 1]) then return false end
      at.member, at.at = some[index], some[index + 1]
    end
    if #some < 2 * BATCH then return true end
    first = first + BATCH
  end
end

-- HSCAN returns about as many fields as are wanted. If the page has no room for some of them, `rest` keeps these, because
-- a growing table may return others at the same cursor. A small table returns all fields at once.
-- Then `member` is the last field of the page, in the order of the fields. A table may outgrow that between two pages.
local function through_hash(it, at, name, take)
  -- The cursor of another list may have another part.
  local is_cursor = string.match(at.part, "^%d+$") and tonumber(at.part) < 2 ^ 64
  if not is_cursor and at.part ~= ENDED then at.part, at.member = "0", "" end
  local rest = at.rest or {}
  while rest[1] do
    local value = redis.call("HGET", name, rest[1])
    if value and not take(rest[1], value) then return false end
    table.remove(rest, 1)
  end
  while at.part ~= ENDED do
    local count = math.max(LEAST_COUNT, math.min(it.left, it.most - #it.rows))
    if it.left <= 0 then return false end
    local cursor, flat = unpack(redis.call("HSCAN", name, at.part, "COUNT", count))
    local fields, values, is_whole = {}, {}, at.part == "0" and cursor == "0"
    for index = 1, #flat, 2 do
      if flat[index] > at.member then fields[#fields + 1], values[flat[index]] = flat[index], flat[index + 1] end
    end
    it.left = it.left - #fields
    table.sort(fields)
    if not is_whole then at.part = cursor == "0" and ENDED or cursor end
    for index = 1, #fields do
      if not take(fields[index], values[fields[index]]) then
        if not is_whole then at.rest = {unpack(fields, index)} end
        return false
      end
      if is_whole then at.member = fields[index] end
    end
    if is_whole then at.part = ENDED end
  end
  return true
end

-- Returns the first task of a lane after a sequence number, as {name, seq}, or nil if there is none.
local function lane_from(name, from)
  local seq = redis.call("ZRANGEBYSCORE", name, from, "+inf", "WITHSCORES", "LIMIT", 0, 1)[2]
  return seq and {name = name, seq = tonumber(seq)}
end

-- Puts a lane into a list, in which the oldest first task is at the end.
local function insert(lanes, lane)
  local low, high = 1, #lanes + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if lanes[middle].seq > lane.seq then low = middle + 1 else high = middle end
  end
  table.insert(lanes, low, lane)
end

local function through_lanes(it, at, names, take)
  local from, lanes = at.at == "" and "-inf" or "(" .. at.at, {}
  for index = 1, #names do lanes[#lanes + 1] = lane_from(names[index], from) end
  table.sort(lanes, function(one, other) return one.seq > other.seq end)
  while #lanes > 0 do
    local lane, other = table.remove(lanes), lanes[#lanes]
    local before = other and "(" .. Rates.int_text(other.seq) or "+inf"
    local some = redis.call("ZRANGEBYSCORE", lane.name, Rates.int_text(lane.seq), before, "WITHSCORES", "LIMIT", 0, BATCH)
    for index = 1, #some, 2 do
      if not may_look(it) or not take(some[index]) then return false end
      at.at = some[index + 1]
    end
    local rest = lane_from(lane.name, "(" .. some[#some])
    if rest then insert(lanes, rest) end
  end
  return true
end

--[[
  sections
]]

-- Returns the queues of a section that are in a table. The queue of parked tasks is not that of the filter.
local function queues_of(it, names, is_parked)
  local found, only = {}, not is_parked and it.filter.queue
  for index = 1, #names do
    local name = names[index]
    if Promotions.is_parked(name) == is_parked and (not only or name == only) then found[#found + 1] = name end
  end
  return found
end

-- Returns the names of all lanes with tasks of the filter, or nil if there are too many tenants and lanes.
local function lanes_of(it, is_parked)
  local ctx, found, looked_at = it.ctx, {}, 0
  local function add_lanes(queue, key)
    local lanes = Lanes.all_of(ctx, key, queue, LISTED_LANES)
    looked_at = looked_at + 1 + #lanes
    for index = 1, #lanes do
      if not it.filter.key or counts_in(it, it.filter.key, queue, key, Lanes.limits_of(lanes[index])) then
        found[#found + 1] = ctx.prefix .. Lanes.tags_name(key, lanes[index], queue)
      end
    end
  end
  if it.keys then
    for index = 1, #it.keys do
      local fields = redis.call("HKEYS", ctx.prefix .. Keys.TENANT_STATE .. it.keys[index])
      for place = 1, #fields do
        fields[place] = string.match(fields[place], "^q:(.*)$") or ""
      end
      local queues = queues_of(it, fields, is_parked)
      for place = 1, #queues do
        if queues[place] ~= "" then add_lanes(queues[place], it.keys[index]) end
        if looked_at > LISTED_LANES then return nil end
      end
    end
    return found
  end
  local queues, tenants = queues_of(it, redis.call("HKEYS", ctx.prefix .. Keys.WAITING), is_parked), 0
  for index = 1, #queues do
    tenants = tenants + 1 + redis.call("ZCARD", ctx.prefix .. Keys.ACTIVE .. queues[index])
      + redis.call("ZCARD", ctx.prefix .. Keys.BLOCKED .. queues[index])
    -- Each tenant has one lane at least.
    if tenants > LISTED_LANES then return nil end
  end
  for index = 1, #queues do
    for _, order in ipairs({Keys.ACTIVE, Keys.BLOCKED}) do
      local keys = redis.call("ZRANGE", ctx.prefix .. order .. queues[index], 0, -1)
      for place = 1, #keys do
        if looked_at > LISTED_LANES then return nil end
        add_lanes(queues[index], keys[place])
      end
    end
  end
  return looked_at <= LISTED_LANES and found or nil
end

local function list_lanes(it, at, section, is_parked)
  local prefix = it.ctx.prefix
  -- A walk through records goes on as it began.
  local names = at.part == "" and lanes_of(it, is_parked)
  if names then
    return through_lanes(it, at, names, function(tag)
      return add_head(it, section, tag, redis.call("HGET", prefix .. Keys.TASKS, tag), {})
    end)
  end
  it.in_no_order = true
  local after = tonumber(at.at) or -1
  return through_hash(it, at, prefix .. Keys.TASKS, function(tag, head)
    local task = Tasks.read_head(tag, head)
    if task.seq <= after or Promotions.is_parked(task.queue) ~= is_parked or not is_wanted(it, task) then return true end
    local lane = Lanes.tags_name(task.key, Lanes.lane_of(task), task.queue)
    if not redis.call("ZSCORE", prefix .. lane, tag) then return true end
    return add(it, section, task, {head = head})
  end)
end

local function list_scheduled(it, at, section, is_parked)
  local prefix = it.ctx.prefix
  if it.keys then
    return by_part(at, it.keys, function(key)
      return through_set(it, at, prefix .. Keys.SCHEDULED_OF .. key, false, function(tag)
        local task = Tasks.read(it.ctx, tag)
        if not task or Promotions.is_parked(task.queue) ~= is_parked then return true end
        local due = redis.call("ZSCORE", prefix .. Keys.SCHEDULED .. task.queue, Schedule.member_of(task))
        return add_head(it, section, tag, redis.call("HGET", prefix .. Keys.TASKS, tag), {due = due})
      end)
    end)
  end
  local queues = queues_of(it, redis.call("SMEMBERS", prefix .. Keys.QUEUES), is_parked)
  return by_part(at, queues, function(queue)
    return through_set(it, at, prefix .. Keys.SCHEDULED .. queue, false, function(member, due)
      local tag = Schedule.tag_of(member)
      return add_head(it, section, tag, redis.call("HGET", prefix .. Keys.TASKS, tag), {due = due})
    end)
  end)
end

-- A task runs whose message another broker has. Its row has all that is known of it.
local function add_held(it, lease, row)
  local filter, key = it.filter, string.match(row.keys, "^[^,]+")
  if not it.detailed or filter.tenant and not it.is_key[key] or filter.queue and row.queue ~= filter.queue
    or filter.key and not string.find("," .. row.keys .. ",", "," .. filter.key .. ",", 1, true) then
    return true
  end
  return add(it, "running", {tag = lease, key = key, id = row.id, name = row.name, queue = row.queue, tenant = "",
    tier = ""}, {row = row})
end

local function add_running(it, tag, text)
  local row = Tasks.read_row(text)
  if row.state == "held" then return add_held(it, tag, row) end
  if Promotions.is_promotion(row) then return true end
  return add_head(it, "running", tag, redis.call("HGET", it.ctx.prefix .. Keys.TASKS, tag), {row = row})
end

local function list_running(it, at)
  local ctx, keys = it.ctx, it.keys or it.filter.key and {it.filter.key}
  if not keys then
    it.in_no_order = true
    return through_hash(it, at, ctx.prefix .. Keys.RUNNING, function(tag, text) return add_running(it, tag, text) end)
  end
  local function add_lease(lease)
    local row, tag = Tasks.read_running(ctx, lease)
    local field = row and tag or lease
    local text = redis.call("HGET", ctx.prefix .. Keys.RUNNING, field)
    return not text or add_running(it, field, text)
  end
  return by_part(at, keys, function(key)
    return through_set(it, at, ctx.prefix .. Slots.table_of(key), false, add_lease)
  end)
end

local function list_dead(it, at)
  local prefix = it.ctx.prefix
  return by_part(at, queues_of(it, redis.call("SMEMBERS", prefix .. Keys.QUEUES), false), function(queue)
    return through_set(it, at, prefix .. Keys.DEAD .. queue, true, function(tag)
      return add_head(it, "dead", tag, redis.call("HGET", prefix .. Keys.TASKS, tag), {})
    end)
  end)
end

local SECTIONS = {
  {name = "dead", state = "dead", list = list_dead},
  {name = "running", state = "running", list = list_running},
  {name = "waiting", state = "waiting", list = list_lanes},
  {name = "parked", state = "parked", list = list_lanes, is_parked = true},
  {name = "retried", state = "parked", list = list_scheduled, is_parked = true},
  {name = "delayed", state = "delayed", list = list_scheduled},
}

-- Adds tasks to the page from a position on. Returns where it ends, or nil if nothing is left.
function Listing.read_page(it, at)
  it.left, it.bytes, it.rows, it.is_key = LISTED_TASKS, READ_BYTES, {}, {}
  it.keys = keys_of(it.ctx, it.filter)
  it.key_queue = it.filter.key and Config.queue_of_key(it.ctx, it.filter.key)
  for index = 1, #(it.keys or {}) do it.is_key[it.keys[index]] = true end
  local is_reached = not at
  for index = 1, #SECTIONS do
    local section = SECTIONS[index]
    if at and at.section == section.name then is_reached = true end
    if is_reached and it.filter.states[section.state] then
      at = at and at.section == section.name and at or {section = section.name, part = "", at = "", member = ""}
      if not section.list(it, at, section.name, section.is_parked or false) then return at end
    end
  end
end
