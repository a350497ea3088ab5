--[[
  moves: tasks on their way to another installation, whose Redis may be another server.

  Two servers cannot be one transaction. So tasks leave in pages, and a page takes three calls: one takes its tasks from
  their places here, one brings them in there, and one deletes them here. The caller may die after each of them, and the
  next caller goes on with the page that is open here. Another call with the same page changes nothing.

  The hash `last_answer:@page` has the open page. Its field `page` is the name of the page, and `task TAG` is the place that
  each of its tasks had:

    lane           its lane
    due MS         it waited for its time
    dead SEQ       it was a dead letter
    unwritten SEQ  the same, and its result is not written yet

  A task of the open page has its record, and waits nowhere. So no worker starts it, and a put that is sent again is
  dropped.

  `last_answer:PAGE` exists if a page was brought in here. The tasks of such a page may have ended, so that their tags are
  not known any more.
]]

-- A page has about as many bytes of messages at most. Its last message may be larger.
local BYTES_AT_MOST = 1048576
-- A page is remembered for a day. A caller that goes on later brings in tasks again that have ended.
local REMEMBERED_MS = 86400000

local OPEN = Keys.LAST_ANSWER .. "@page"

-- Returns the name of the open page, or nil.
function Moves.open_page(ctx)
  return redis.call("HGET", ctx.prefix .. OPEN, "page") or nil
end

function Moves.is_moving(ctx, tag)
  return redis.call("HEXISTS", ctx.prefix .. OPEN, "task " .. tag) == 1
end

-- Returns the tags of the open page, and the places of its tasks by tag.
local function places_of_page(ctx)
  local fields, tags, places = redis.call("HGETALL", ctx.prefix .. OPEN), {}, {}
  for index = 1, #fields, 2 do
    local tag = string.match(fields[index], "^task (.*)$")
    if tag then tags[#tags + 1], places[tag] = tag, fields[index + 1] end
  end
  return tags, places
end

local function read_place(place)
  return string.match(place, "^(%a+) ?(.*)$")
end

-- The tasks of the open page are elsewhere now.
function Moves.delete_page(ctx)
  local tags = places_of_page(ctx)
  for index = 1, #tags do
    local task = Tasks.read(ctx, tags[index])
    if task then Tasks.forget(ctx, task) end
  end
  redis.call("DEL", ctx.prefix .. OPEN)
end

-- The tasks of the open page are in their places again.
function Moves.put_page_back(ctx, logical)
  local tags, places = places_of_page(ctx)
  for index = 1, #tags do
    local task = Tasks.read(ctx, tags[index])
    local kind, number = read_place(places[tags[index]])
    if not task then
      Stats.count_lost(ctx)
    elseif kind == "lane" then
      Lanes.enqueue(ctx, task.queue, task, false)
    elseif kind == "due" then
      Schedule.wait_until(ctx, task.queue, task, tonumber(number))
    else
      Moves.bury(ctx, task, number, kind, logical)
    end
  end
  redis.call("DEL", ctx.prefix .. OPEN)
end

-- A dead letter is in its place again, or in that of another installation.
function Moves.bury(ctx, task, number, kind, logical)
  redis.call("ZADD", ctx.prefix .. Keys.DEAD .. task.queue, number, task.tag)
  Queues.note(ctx, task.queue)
  if kind == "unwritten" then redis.call("ZADD", ctx.prefix .. Keys.OUTCOMES, logical, task.tag) end
end

-- Takes tasks of a queue from their places into the page. `page` has the places by tag, and how many tasks and bytes it
-- may still have. Lanes go first, as a claim may bring a task into its lane, and never out of it.
function Moves.take_of(ctx, queue, page)
  local function take(tag, place)
    page.tasks[#page.tasks + 1], page.places[tag] = tag, place
    page.left, page.bytes = page.left - 1, page.bytes - redis.call("HSTRLEN", ctx.prefix .. Keys.MESSAGES, tag)
  end
  local function has_room()
    return page.left > 0 and page.bytes > 0
  end
  while has_room() do
    local tag = Lanes.pop_any(ctx, queue)
    if tag == nil then break end
    if tag then take(tag, "lane") else page.left = page.left - 1 end
  end
  local later = ctx.prefix .. Keys.SCHEDULED .. queue
  while has_room() do
    local member = redis.call("ZRANGE", later, 0, 0)[1]
    if not member then break end
    local tag = Schedule.tag_of(member)
    local task = Tasks.read(ctx, tag)
    if task then
      take(tag, "due " .. Schedule.remove(ctx, task))
    else
      Stats.count_lost(ctx)
      redis.call("ZREM", later, member)
      page.left = page.left - 1
    end
  end
  local dead = ctx.prefix .. Keys.DEAD .. queue
  while has_room() do
    local tag, number = unpack(redis.call("ZRANGE", dead, 0, 0, "WITHSCORES"))
    if not tag then break end
    redis.call("ZREM", dead, tag)
    take(tag, (Settle.forget_outcome(ctx, tag) and "unwritten " or "dead ") .. number)
  end
  Queues.forget_empty(ctx, queue)
end

-- Opens a page with tasks of queues, if there are any.
function Moves.take_page(ctx, name, queues, most)
  local page = {tasks = {}, places = {}, left = most, bytes = BYTES_AT_MOST}
  for index = 1, #queues do Moves.take_of(ctx, queues[index], page) end
  if #page.tasks == 0 then return end
  redis.call("HSET", ctx.prefix .. OPEN, "page", name)
  for index = 1, #page.tasks do
    local tag = page.tasks[index]
    redis.call("HSET", ctx.prefix .. OPEN, "task " .. tag, page.places[tag])
  end
end

-- Returns {tag, head, message, place, expires, unique} of each task of the open page, in the order of their numbers.
-- - expires is the server time from which it does not start any more, or ""
-- - unique is `SINCE KEY` of the unique key that it has, or ""
function Moves.read_page(ctx)
  local tags, places = places_of_page(ctx)
  local rows, order = {}, {}
  for index = 1, #tags do
    local tag = tags[index]
    local head = redis.call("HGET", ctx.prefix .. Keys.TASKS, tag)
    if head then
      local task = Tasks.read_head(tag, head)
      local expires = redis.call("ZSCORE", ctx.prefix .. Keys.EXPIRES .. task.queue, tag) or ""
      local key = Unique.key_of(ctx, tag)
      local since, holder = string.match(key and redis.call("HGET", ctx.prefix .. Keys.UNIQUE, "key " .. key) or "",
        "^(%d+) (.+)$")
      local unique = holder == tag and since .. " " .. key or ""
      rows[#rows + 1] = {tag, head, Tasks.message_of(ctx, tag), places[tag], expires, unique}
      local kind, number = read_place(places[tag])
      order[tag] = (kind == "dead" or kind == "unwritten") and tonumber(number) or task.seq
    end
  end
  table.sort(rows, function(one, other) return order[one[1]] < order[other[1]] end)
  return rows
end

--[[
  The other side: tasks come in.
]]

-- Returns whether a page comes for the first time, and notes that.
function Moves.note_received(ctx, page)
  return redis.call("SET", ctx.prefix .. Keys.LAST_ANSWER .. page, "", "PX", REMEMBERED_MS, "NX") and true or false
end

-- A task of another installation begins to wait here, or is a dead letter here. If it is known, nothing changes. `rest` is
-- what follows its head in a row of a page.
function Moves.bring_in(ctx, task, rest, rules)
  local message, place, expires, unique = unpack(rest)
  if not Tasks.add_message(ctx, task, message) then return end
  task.seq = Tasks.next_seq(ctx)
  Tasks.add_id(ctx, task)
  local kind, number = read_place(place)
  if kind == "dead" or kind == "unwritten" then
    Tasks.write(ctx, task)
    return Moves.bury(ctx, task, task.seq, kind, rules.logical)
  end
  local since, key = string.match(unique, "^(%d+) (.+)$")
  if key then
    local held = Unique.holder(ctx, key)
    if not held or Unique.is_same(held, task) then Unique.take(ctx, key, task.tag, tonumber(since)) end
  end
  if task.limits ~= "" then Wake.declare(ctx, task.limits, false, rules.now) end
  if rules.limited then task.limits = Config.in_partition(ctx, task.queue, task.limits, "") end
  if task.limits ~= "" then Clock.note_limited(ctx, rules) end
  if expires ~= "" then
    redis.call("HSET", ctx.prefix .. Keys.CLOCK, "expiring", 1)
    redis.call("ZADD", ctx.prefix .. Keys.EXPIRES .. task.queue, expires, task.tag)
  end
  if kind == "due" then return Schedule.wait_until(ctx, task.queue, task, tonumber(number)) end
  Lanes.enqueue(ctx, task.queue, task, true, rules.now)
end
