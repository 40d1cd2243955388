-- The entries of a small directory with the nodes behind them, in one trip. KEYS: its entries. ARGV: how many are few.
-- Nothing at all where there are more, or where one cannot be read here: the long way tells what is wrong with it.
-- Writes nothing.

if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[1]) then
  return false
end
local entries = redis.call('HGETALL', KEYS[1])
local nodes = {}
for at = 2, #entries, 2 do
  local node = node_of(entries[at])
  if not node then
    return false
  end
  nodes[#nodes + 1] = node
end
if #nodes == 0 then
  return { {}, {} }
end
return { entries, redis.call('MGET', unpack(nodes)) }
