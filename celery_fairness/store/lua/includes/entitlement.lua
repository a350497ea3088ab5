--[[
  entitlement: the tier and the concurrency of a tenant now.

  News in Redis win over what the asking process knows: the tenant's record over its tier, the tier
  table over its numbers, the default tier over an unknown one.

  tiers_key      hash  tier -> {"concurrency": int or null, ...} as JSON
  tenant_key     hash  tier, concurrency ("" or absent: the tier's; "unlimited")
  tier           str   as the caller knows it
  concurrency    str   of that tier, as the caller knows it: an integer, "unlimited", or "" where
                       the caller does not know that tier
  default_tier   str   for a tier that the table does not know
  default_limit  str   of the default tier, as the caller knows it
  read           table by tier, what this call has read of the table

  Returns tier, concurrency (-1 is unlimited), weight (1 where the table does not know the tier).
]]
local function entitlement(tiers_key, tenant_key, tier, concurrency, default_tier, default_limit, read)
  local record = redis.call("HMGET", tenant_key, "tier", "concurrency")
  local known = tier
  if record[1] and record[1] ~= "" then tier = record[1] end
  local rows = read[tier]
  if not rows then
    rows = redis.call("HMGET", tiers_key, tier, default_tier)
    rows.row = (rows[1] or rows[2]) and cjson.decode(rows[1] or rows[2])
    read[tier] = rows
  end
  local limit
  local row = rows.row
  if rows[1] then
    limit = row["concurrency"]
  elseif rows[2] then
    tier, limit = default_tier, row["concurrency"]
  elseif tier == known and concurrency ~= "" then
    limit = concurrency
  else
    tier, limit = default_tier, default_limit
  end
  if record[2] and record[2] ~= "" then limit = record[2] end
  if limit == "unlimited" or limit == cjson.null then limit = -1 end
  return tier, tonumber(limit), row and tonumber(row["weight"]) or 1
end
