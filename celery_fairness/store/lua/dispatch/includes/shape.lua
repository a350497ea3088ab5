--[[
  shape: a limit's word without the size of its numbers: where its tasks wait.

  `#` stands for a number, for which the newest of its key holds (declared.lua). A concurrency of 0 stays:
  it stops the tasks that say it, and no others of the key.
]]

local function mark(number)
  return number == "" and "" or "#"
end

-- Limits, or a lane, as they would be with any other numbers.
local function shape_of(words)
  return (string.gsub(words, "|([%dq#]*)|([^|,]*)|([^|,]*)", function(concurrency, rates, throttle)
    if concurrency ~= "0" and concurrency ~= "q" then concurrency = mark(concurrency) end
    return "|" .. concurrency .. "|" .. mark(rates) .. "|" .. mark(throttle)
  end))
end

-- The name of a limit, by its word.
local function name_of(word)
  return string.match(shape_of(word), "^[^|]*|[^|]*|[^|]*|[^|]*")
end
