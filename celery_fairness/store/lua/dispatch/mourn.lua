--[[
  mourn: hand out the obituary of a task that ended for good while nobody was there to tell, and
  forget the one whose result is written.

  It is handed out again after a lease, so that it is not lost with the worker that took it. Leases
  that ended are cleared away first: a worker without a free place, which claims nothing, mourns too.

  KEYS[1]  prefix         str  what every key of the installation begins with

  ARGV[1]  written        str  the obituary whose result is written, or ""
  ARGV[2]  lease_ms       int  how long a lease lives without a renewal
  ARGV[3]  enforcement    str  "on", "observe" or "off"
  ARGV[4]  default_tier   str  for a tier that is not known
  ARGV[5]  default_limit  str  of the default tier, an integer or "unlimited"
  ARGV[6]  max_deliveries int  deaths after which a task goes to the dead letters; 0: never
  ARGV[7]  frozen_ms      str  "" in production (server TIME); set only by tests

  Returns {} or {obituary, owner, state, queue, tenant, deaths, message}.
]]
--- @include "leases"
--- @include "tick"
--- @later limited "limited"
--- @later rare "again"
--- @later timed "correcting"
local prefix, written, lease_ms, frozen_ms = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[7]

-- Ends of leases that one call sees to.
local DUE_AT_MOST = 16

local logical, now, _, said = tick(prefix .. "clock", lease_ms, frozen_ms)
local rules = {
  logical = logical,
  enforcement = ARGV[3], default_tier = ARGV[4], default_limit = ARGV[5],
  max_deliveries = tonumber(ARGV[6]),
  version = tonumber(redis.call("HGET", prefix .. "news", "version") or 0),
  limited = said.limited, now = now, steered = said.steered,
  timed = said.timed, paced = said.paced, watched = said.watched,
}
ranked = said.ranked
expire(prefix, rules, DUE_AT_MOST)

local obituaries = prefix .. "obituaries"
if written ~= "" then redis.call("ZREM", obituaries, written) end
local row = redis.call(
  "ZRANGEBYSCORE", obituaries, "-inf", rules.logical, "LIMIT", 0, 1)[1]
if not row then return {} end
redis.call("ZADD", obituaries, rules.logical + lease_ms, row)
local owner, state, queue, record = read_running(row)
local task, message = read_record(record)
return {row, owner, state, queue, task.tenant, task.deaths, message}
