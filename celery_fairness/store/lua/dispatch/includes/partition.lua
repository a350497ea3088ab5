--[[
  partition: of a partitioned queue each task that waits there has one limit, that of its partition.
]]

-- A word of that limit: its numbers are those of the queue.
local OF_QUEUE = "^[^|]*|q|"

-- The limits of a task that begins to wait in a queue: where that is partitioned and they name no
-- partition of it, with `part`, or with that of tasks that say none.
local function in_partition(prefix, queue, words, part)
  local row = redis.call("HGET", prefix .. "queue_limits", queue)
  local whole = row and string.match(row, "^%S+ parts ") and string.match(row, "^%S+") .. ":"
  if not whole then return words end
  for word in string.gmatch(words, "[^,]+") do
    if string.sub(word, 1, #whole) == whole and string.match(word, OF_QUEUE) then return words end
  end
  local key = string.sub(part, 1, #whole) == whole and part or whole
  return (words == "" and "" or words .. ",") .. key .. "|q|||w"
end

-- The limits of a task that leaves its queue: its partition there is not its own any more.
local function without_partition(words)
  local left = {}
  for word in string.gmatch(words, "[^,]+") do
    if not string.match(word, OF_QUEUE) then left[#left + 1] = word end
  end
  return table.concat(left, ",")
end
