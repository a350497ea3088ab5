--[[
  request_permits: request permits of a key (permits.lua). It runs in the partition that starts tasks with them.

  args[1-5] settings   any  of the worker (Tenants.rules_of)
  args[6]  frozen_ms   str  "" in production (server TIME); set only by tests
  args[7]  key         str  the key
  args[8]  home        str  the epoch of a home that counts the permits of all partitions, otherwise ""
  args[9]  after       str  the number of the request whose turn has come, otherwise ""

  Returns JSON, a report that grant_permits takes. Its fields `partition` and `name` are those of the caller:
  - run, number  the name of this server (Clock.server_id), and the number of the request
  - n, held      the valid permits, and the slots that running tasks take
  - demand       the slots that tasks take or wait for
  - need         the slots of the first task that waits
  - tenants      how many tenants wait
  - own, since   the numbers of the key as a text, and when they changed. `own` may be absent
  - numbers      those that the key has in the partition by its queue and by people
  - lot          what a rate needs (Lots.report), may be absent
  - settled      whether no older server of this partition goes on

  It is an empty object if another worker has made a request since the one whose turn has come. That worker comes again.
  If the user may not run INFO, the result is an error.
]]
register("request_permits", {"allow-oom"}, function(keys, args)
  local ctx = {prefix = keys[1], memo = {}, result = {}}
  local rules, _, epoch = Tenants.rules_of(ctx, args, 1, args[6])
  epoch = Clock.meet_server(ctx, epoch, rules.now)
  local after = tonumber(args[9])
  if after and Permits.read(ctx, args[7]).number ~= after then return "{}" end
  local report = Permits.request(ctx, args[7], rules, tonumber(args[8]))
  if report.run == "" then
    return redis.error_reply("NOPERM permits name the server by its master_replid: grant the right +info")
  end
  report.settled = Permits.is_settled(ctx, epoch, rules.lease_ms, rules)
  return cjson.encode(report)
end)
