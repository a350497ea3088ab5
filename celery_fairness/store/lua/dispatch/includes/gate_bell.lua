--[[
  gate_bell: a worker that sleeps shall look whether parked tasks may start.
]]

local function ring_gate(prefix)
  if redis.call("LLEN", prefix .. "gate_bell") == 0 then redis.call("RPUSH", prefix .. "gate_bell", 1) end
end
