-- An entry, the directory it is in and the node behind it, in one trip. KEYS: the directory's attributes, its entries.
-- ARGV: the name. Writes nothing.

local parent = redis.call('GET', KEYS[1])
local entry = redis.call('HGET', KEYS[2], ARGV[1])
local node = false
if entry and #entry == 9 then
  local high, low = struct.unpack('>I4I4', entry, 2)
  -- Numbers in Lua are doubles; what does not fit is left to the caller.
  if high < 2097152 then
    node = redis.call('GET', string.format('i%.0f', high * 4294967296 + low))
  end
end
return { parent, entry, node }
