--[[
  stops: keys under which nothing starts for now, whatever their limits say and whatever is enforced;
  and numbers that people put in the place of a key's own.

  `paused` holds keys that a person paused until somebody resumes them, `paused_until` those with a
  time, `cooled` those that cool down, with the logical time until which they do. `paused_by` holds for
  each that is paused SINCE_MS, the server's time, and after a space the person; scripts do not read it.

  `overrides` says by key CONCURRENCY|RATES|THROTTLE|ENDS_MS and, after a space, what scripts do not
  read: "-" is not said, "" is unlimited; an end of "" is when it is cleared. `overrides_end` orders
  those with an end. Ends of overrides and of pauses are times of the server.
]]

-- How long a person's pause of a key lasts; 0: there is none.
local function paused_ms(prefix, key, rules)
  if redis.call("SISMEMBER", prefix .. "paused", key) == 1 then return math.huge end
  local ends = redis.call("ZSCORE", prefix .. "paused_until", key)
  return ends and math.max(0, tonumber(ends) - rules.now) or 0
end

-- A key's numbers as texts; nil where nobody changed them.
local function override_of(prefix, key, rules)
  local row = redis.call("HGET", prefix .. "overrides", key)
  if not row then return nil end
  local concurrency, rates, throttle, ends = string.match(row, "^([^|]*)|([^|]*)|([^|]*)|(%d*)")
  if ends ~= "" and tonumber(ends) <= rules.now then return nil end
  return {concurrency = concurrency, rates = rates, throttle = throttle}
end

-- What a tenant may hold where a person paused it or changed that.
local function tenant_limit(prefix, key, tenant, own, rules)
  if paused_ms(prefix, key, rules) > 0 then return 0 end
  local of_all = "tenant:" .. tenant
  if key ~= of_all and paused_ms(prefix, of_all, rules) > 0 then return 0 end
  local other = override_of(prefix, key, rules)
  if not other or other.concurrency == "-" then return own end
  return tonumber(other.concurrency) or -1
end

-- Whether a claim has to ask what people have said of a tenant.
local function note_steering(prefix)
  if redis.call("EXISTS", prefix .. "paused", prefix .. "paused_until", prefix .. "overrides") > 0 then
    redis.call("HSET", prefix .. "clock", "steered", 1)
  else
    redis.call("HDEL", prefix .. "clock", "steered")
  end
end
