-- The beginning of a directory with the nodes behind its entries, in one trip. KEYS: its entries. ARGV: how many, about.
-- Answers where it goes on, the entries, and their nodes. No nodes where there are many more than asked for (the server
-- answers with all of a small hash), nor where one cannot be told from its entry here: the long way says what is wrong.
-- Writes nothing.

local found = redis.call('HSCAN', KEYS[1], '0', 'COUNT', ARGV[1])
local entries = found[2]
if #entries > 4 * tonumber(ARGV[1]) then
  return found
end
local nodes = {}
for at = 2, #entries, 2 do
  local node = node_of(entries[at])
  if not node then
    return found
  end
  nodes[#nodes + 1] = node
end
found[3] = {}
if #nodes > 0 then
  found[3] = redis.call('MGET', unpack(nodes))
end
return found
