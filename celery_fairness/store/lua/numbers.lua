--[[
  numbers: the numbers of limits as texts, by the table of `celery_fairness/config/numbers.py`.

  A text is `C3;R100/60000`: a capital letter for the number, then its value. A number that is not in the text is
  not set. The value "-" is a number that people took away, and "#" stands for any value.

  `BY_LETTER` and `ORDER` are of that table: the name and the kind of each number, and the letters in order. Starts in
  windows and a spacing are texts in Lua, STARTS/PERIOD_MS with + between several. A limit that lacks one of these has
  "". The other kinds are numbers, or nil.

  An amount says how much one task takes of a number. It is of the task, and the key has none. `AMOUNTS` has the names of
  the amounts, and `AMOUNT_LETTERS` is a pattern of their letters.
]]

local IS_TEXT = {starts = true, spacing = true}

-- Reading a text costs more than one pattern, so the numbers of the last texts are kept. That saves 2.6 % of a claim of
-- one at a key. Callers only read them.
local TEXTS_KEPT = 256
local texts, texts_kept = {}, 0

-- Returns the numbers of a text by name. A number that people took away is false, and "#" is true.
function Numbers.read(text)
  local found = texts[text]
  if found then return found end
  found = {}
  for letter, value in string.gmatch(text, "(%u)([^;]+)") do
    local number = BY_LETTER[letter]
    -- A newer version of the package may have further numbers.
    if number and value == "-" then
      found[number.name] = false
    elseif number and value == "#" then
      found[number.name] = true
    elseif number then
      found[number.name] = IS_TEXT[number.kind] and value or tonumber(value)
    end
  end
  if texts_kept == TEXTS_KEPT then texts, texts_kept = {}, 0 end
  texts[text], texts_kept = found, texts_kept + 1
  return found
end

-- Gives a limit every number of a text. It lacks the others from now on.
function Numbers.set(limit, text)
  local given = Numbers.read(text)
  for index = 1, #ORDER do
    local number = BY_LETTER[ORDER[index]]
    local value = given[number.name]
    if not value or value == true then value = IS_TEXT[number.kind] and "" or nil end
    limit[number.name] = value
  end
  return limit
end

-- Gives a limit the numbers of another one.
function Numbers.copy(limit, other)
  for index = 1, #ORDER do
    local name = BY_LETTER[ORDER[index]].name
    limit[name] = other[name]
  end
end

-- Gives a limit the numbers of a text that it has itself: those for which `has` is true.
function Numbers.use(limit, has, text)
  for name, value in pairs(Numbers.read(text)) do
    if has[name] then limit[name] = value end
  end
end

-- Gives a limit the stricter of its numbers and those of another limit, and the larger of their amounts.
function Numbers.tighten(limit, other)
  for index = 1, #ORDER do
    local number = BY_LETTER[ORDER[index]]
    local name, kind, one, two = number.name, number.kind, limit[number.name], other[number.name]
    if one == nil or one == "" or one == two then
      limit[name] = two
    elseif two == nil or two == "" then
      -- Nothing is stricter than its own.
    elseif kind == "starts" then
      limit[name] = one .. "+" .. two
    elseif kind == "amount" then
      limit[name] = math.max(one, two)
    elseif kind == "spacing" then
      if Rates.interval_of(two) > Rates.interval_of(one) then limit[name] = two end
    else
      limit[name] = math.min(one, two)
    end
  end
end

-- Gives a limit the numbers that people set in a text, also one that they took away.
function Numbers.replace(limit, text)
  for name, value in pairs(Numbers.read(text)) do
    if value == false then value = type(limit[name]) == "string" and "" or nil end
    limit[name] = value
  end
end

-- Returns the numbers of a limit as a text, without those for which `without` is true.
function Numbers.write(limit, without)
  local parts = {}
  for index = 1, #ORDER do
    local number = BY_LETTER[ORDER[index]]
    local value = limit[number.name]
    if value and value ~= "" and not (without and without[number.name]) then
      parts[#parts + 1] = ORDER[index] .. (IS_TEXT[number.kind] and value or string.format("%.17g", value))
    end
  end
  return table.concat(parts, ";")
end

-- Returns the newest numbers of a key as a text. Those of a new task replace those that are known. Those of any
-- other task only add what is not known.
function Numbers.newest(own, known, is_new)
  if own == known then return known end
  local old, new = {}, {}
  Numbers.set(old, known)
  Numbers.set(new, own)
  for name, value in pairs(new) do
    if value ~= "" and (is_new or old[name] == nil or old[name] == "") then old[name] = value end
  end
  return Numbers.write(old)
end

-- Returns a text without amounts.
function Numbers.of_key(text)
  if not string.find(text, AMOUNT_LETTERS) then return text end
  return (string.gsub(string.gsub(text, ";?" .. AMOUNT_LETTERS .. "[^;]*", ""), "^;", ""))
end

-- Returns limits of a task with "#" in the place of each amount.
function Numbers.without_amounts(specs)
  if not string.find(specs, "[|;]" .. AMOUNT_LETTERS .. "%d") then return specs end
  return (string.gsub(specs, "([|;]" .. AMOUNT_LETTERS .. ")%d+", "%1#"))
end

-- Returns the amounts of a limit as a text, or nil if each is 1.
function Numbers.amounts_of(limit)
  local parts = {}
  for index = 1, #ORDER do
    local name = BY_LETTER[ORDER[index]].name
    if AMOUNTS[name] and limit[name] then parts[#parts + 1] = ORDER[index] .. Rates.int_text(limit[name]) end
  end
  return #parts > 0 and table.concat(parts, ";") or nil
end

-- Returns a text with "#" in the place of each value, and without amounts. A concurrency of 0 stays as it is: it stops
-- the tasks that declare it, and no other tasks of the key.
function Numbers.shape(text)
  return (string.gsub(Numbers.of_key(text), "(%u)([^;]+)", function(letter, value)
    if letter == "C" and value == "0" then return nil end
    return letter .. "#"
  end))
end

-- Returns the numbers of a text that a task shares with its key: without a concurrency of 0, and without amounts.
function Numbers.shared(text)
  return (string.gsub(Numbers.of_key(text), "^C0;?", ""))
end
