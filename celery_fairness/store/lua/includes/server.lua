--[[
  Which server holds the memory: every process of Redis gives itself a `run_id`.

  A memory that another process has written may be older than what workers know: a file that was
  restored, an append-only file without its last second, a replica that was promoted. So it has an
  epoch of its own.

  clock_key    hash  epoch (ms), server: the run_id of who wrote it

  server_id returns "" where the caller may not ask: then only an empty memory is noticed.
]]

local function server_id()
  local told = redis.pcall("INFO", "server")
  return type(told) == "string" and string.match(told, "run_id:(%x+)") or ""
end

-- Returns the epoch, a new one where another server wrote the memory.
local function meet_server(clock_key, epoch, now)
  local id = server_id()
  if id == "" or redis.call("HGET", clock_key, "server") == id then return epoch end
  epoch = math.max(now, epoch + 1)
  redis.call("HSET", clock_key, "server", id, "epoch", string.format("%.0f", epoch))
  return epoch
end
