--[[
  numbers: by which numbers a limit is judged now.

  Those are the newest of its key, those of its queue, or what people put in their place.
]]
--- @include "declared"
--- @include "queues"
--- @include "shape"
--- @include "starts"
--- @include "stopped"

-- As its word or its name says it; its name is without the size of its numbers. `counts` says that it has a concurrency
-- that is not 0, `asks` that the newest numbers of its key hold for it.
local function read_limit(word)
  local key, concurrency, rates, throttle, flags = string.match(
    word, "^([^|]*)|([%dq#]*)|([^|]*)|([^|]*)|?(%a*)$")
  local counts = concurrency ~= "" and concurrency ~= "0" and concurrency ~= "q"
  local is_whole = string.sub(flags, 2) == "g"
  return {word = word, name = name_of(word), key = key, concurrency = tonumber(concurrency),
    rates = rates == "#" and "" or rates, throttle = throttle == "#" and "" or throttle,
    on_limit = string.sub(flags, 1, 1), private = string.sub(flags, 2) == "p", of_queue = concurrency == "q",
    counts = counts, has_rates = rates ~= "", has_throttle = throttle ~= "",
    asks = not is_whole and (counts or rates ~= "" or throttle ~= "")}
end

-- Reads what keys declare, which no call changes after it has asked.
local function know_declared(prefix, keys, rules)
  rules.declared = rules.declared or {}
  local asked, names = {}, {}
  for index = 1, #keys do
    local key = keys[index]
    if rules.declared[key] == nil and #names < KEYS_AT_ONCE then
      rules.declared[key] = false
      asked[#asked + 1], names[#names + 1] = key, prefix .. "declared:" .. key
    end
  end
  if #names == 0 then return end
  local texts = redis.call("MGET", unpack(names))
  for index = 1, #names do rules.declared[asked[index]] = texts[index] end
end

-- A limit gets the newest numbers of its key, of those that it says.
local function use_newest(prefix, limit, rules)
  know_declared(prefix, {limit.key}, rules)
  local concurrency, rates, throttle = read_declared(rules.declared[limit.key])
  if limit.counts then limit.concurrency = tonumber(concurrency) or limit.concurrency end
  if limit.has_rates and rates ~= "" then limit.rates = rates end
  if limit.has_throttle and throttle ~= "" then limit.throttle = throttle end
end

-- Gives a limit the numbers by which it is judged now: the newest of its key, or those that people put in
-- their place. A claim keeps it in `rules.limits`: within its call no number changes.
local function give_numbers(prefix, limit, rules)
  if limit.is_judged then return limit end
  limit.is_judged = true
  if limit.of_queue then use_numbers(prefix, limit, rules) end
  if limit.asks then use_newest(prefix, limit, rules) end
  local other = is_steered(prefix, rules) and override_of(prefix, limit.key, rules)
  if other and other.concurrency ~= "-" then limit.concurrency = tonumber(other.concurrency) end
  if other and other.rates ~= "-" then limit.rates = other.rates end
  if other and other.throttle ~= "-" then limit.throttle = other.throttle end
  if rules.limits then rules.limits[limit.word] = limit end
  return limit
end

local function limit_now(prefix, word, rules)
  return give_numbers(prefix, rules.limits and rules.limits[word] or read_limit(word), rules)
end

local function limits_now(prefix, words, rules)
  local limits, keys = {}, {}
  for word in string.gmatch(words, "[^,]+") do
    local limit = rules.limits and rules.limits[word] or read_limit(word)
    limits[#limits + 1] = limit
    if limit.asks and not limit.is_judged then keys[#keys + 1] = limit.key end
  end
  know_declared(prefix, keys, rules)
  for index = 1, #limits do give_numbers(prefix, limits[index], rules) end
  return limits
end
