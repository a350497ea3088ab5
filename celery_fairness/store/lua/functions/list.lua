--[[
  list: a page of the tasks that a filter takes. The function writes nothing.

  The argument is a JSON object:
  lease_ms      how long a lease lives without a renewal
  default_tier  for a tier that is not known
  tiers         numbers of each tier as the caller holds them, as a text (numbers.lua)
  enforcement   "on", "observe" or "off"
  frozen_ms     "" in production (server TIME); set only by tests
  states        true by each state: dead, running, waiting, parked, delayed
  tenant        as it is written in keys; "" is a system task; absent for any
  queue         where they wait, or to which a parked task goes back; absent for any
  key           in which they count; absent for any
  most          how many tasks a page has at most
  detailed      whether rows have more than tag and head
  from          where the page before ends, as `next` of its answer; absent for the first page

  Returns JSON. A field without a value is left out. Times are in ms.
  - now       the server's time
  - next      where the page ends: section, part, at, member and rest (listing.lua). Without it, no task is left.
  - no_order  true if a part of the page is in no order
  - rows      [TAG, HEAD] of each task, or if they are detailed, objects:
      tag, state, key, queue, tenant, tier, rank
      id, name     of the message, or as they are written in keys if it has none
      sent_tenant  the tenant as the message has it
      args, kwargs the first bytes of their texts in the message's headers
      age_ms       since when it waits, or runs
      due          server time before which it does not start, or its broker is not tried again
      why          waiting, parked: "concurrency", "rate", "throttle", "paused" or "cool-down"
                   parked, and its broker did not take it: "broker"
                   delayed: what rescheduled it
                   running: the state of its lease
                   dead: "deaths", "unreadable" or "lost"
      by           the key of that limit
      owner        the process that runs it
]]
register_json("list", {"no-writes"}, function(ctx, wanted)
  local backlog = Backlog.begin(ctx, wanted)
  local it = {ctx = ctx, filter = wanted, backlog = backlog, most = wanted.most, detailed = wanted.detailed}
  local next_at = Listing.read_page(it, wanted.from)
  return {now = backlog.rules.now, next = next_at, no_order = it.in_no_order, rows = Snapshot.list(it.rows)}
end)
