-- An entry, the directory it is in and the node behind it, in one trip. KEYS: the directory's attributes, its entries.
-- ARGV: the name. A node whose key cannot be told here is left to the caller. Writes nothing.

local parent = redis.call('GET', KEYS[1])
local entry = redis.call('HGET', KEYS[2], ARGV[1])
local key = entry and node_of(entry)
return { parent, entry, key and redis.call('GET', key) or false }
