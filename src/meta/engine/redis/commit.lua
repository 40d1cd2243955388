-- Applies one batch of the metadata engine, or nothing of it.
--
-- The batch is a list of steps. Each step takes its keys from KEYS and its arguments from ARGV in order, so that
-- nothing has to be looked up. ARGV[1] is the number of check steps: guards, and whatever could make a change fail
-- half-way (a key of another type, a number that is none, a node that is not there). They all come before the first
-- write, for Redis undoes nothing when a script fails. Answers 0 when a check does not hold, otherwise the list of
-- what the changes report: list lengths and slice references, in order.
--
-- Numbers in Lua are doubles. Anything of 64 bits is therefore compared as bytes or as two halves, and added by
-- INCRBY and HINCRBY, never here. Strings are not compared with "<": that would follow the locale of the server.

local call = redis.call
local sub, byte, char = string.sub, string.byte, string.char
local unpack_int, pack_int = struct.unpack, struct.pack
local KEYS, ARGV = KEYS, ARGV
local k, a = 0, 1

local ZERO4, ZERO8 = '\0\0\0\0', '\0\0\0\0\0\0\0\0'
-- Attributes by key: as loaded by the checks, and as written since; false when there is no such node.
local attrs = {}
-- Keys whose type has been checked.
local typed = {}

local function key()
  k = k + 1
  return KEYS[k]
end

local function arg()
  a = a + 1
  return ARGV[a]
end

local function corrupt(name)
  return redis.error_reply('CORRUPT ' .. name)
end

-- Parent, ACL ids and tier, whatever variant of the record this is.
local function tail_of(v)
  local n = #v
  if n < 71 then
    return ZERO8, ZERO8, 0
  end
  if n < 79 then
    return sub(v, 64, 71), ZERO8, byte(v, 72) or 0
  end
  return sub(v, 64, 71), sub(v, 72, 79), byte(v, 80) or 0
end

-- What INCRBY and HINCRBY take, with room for any delta below 10^18.
local function is_number(text)
  return not text or text == '0' or (#text < 20 and string.find(text, '^-?[1-9]%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?$'))
end

-- The attributes that the steps below look at.
local v

for _ = 1, tonumber(ARGV[1]) do
  local op = arg()
  if op == 'F' then -- load attributes; the node exists
    local name = key()
    v = attrs[name]
    if v == nil then
      v = call('GET', name)
      attrs[name] = v
    end
    if not v then
      return 0
    end
  elseif op == 'f' then -- bytes at an offset
    local at, want = tonumber(arg()), arg()
    if sub(v, at, at + #want - 1) ~= want then
      return 0
    end
  elseif op == 'k' then -- kind alone: the upper four bits
    if math.floor((byte(v, 2) or 0) / 16) ~= tonumber(arg()) then
      return 0
    end
  elseif op == 'm' then -- mode alone: the lower twelve bits
    if ((byte(v, 2) or 0) % 16) * 256 + (byte(v, 3) or 0) ~= tonumber(arg()) then
      return 0
    end
  elseif op == 't' then -- parent, ACL ids, tier; an empty argument is not compared
    local parent, acls, tier = tail_of(v)
    local want_parent, want_acls, want_tier = arg(), arg(), arg()
    if (want_parent ~= '' and want_parent ~= parent)
      or (want_acls ~= '' and want_acls ~= acls)
      or (want_tier ~= '' and want_tier ~= char(tier)) then
      return 0
    end
  elseif op == 'H' then -- a field has this value
    local name = key()
    typed[name] = true
    if call('HGET', name, arg()) ~= arg() then
      return 0
    end
  elseif op == 'h' then -- a field is absent
    local name = key()
    typed[name] = true
    if call('HEXISTS', name, arg()) == 1 then
      return 0
    end
  elseif op == 'D' then -- a field has this value, the default when absent
    local name = key()
    typed[name] = true
    local got, default = call('HGET', name, arg()), arg()
    if (got or default) ~= arg() then
      return 0
    end
  elseif op == 'w' then -- a key is of the type that the command reads, or absent
    local name, command = key(), arg()
    if not typed[name] then
      call(command, name)
      typed[name] = true
    end
  elseif op == 'n' then -- a counter is a number
    local name = key()
    if not is_number(call('GET', name)) then
      return corrupt(name)
    end
  elseif op == 'i' then -- a field is a number
    local name, field = key(), arg()
    typed[name] = true
    if not is_number(call('HGET', name, field)) then
      return corrupt(name .. ' ' .. field)
    end
  elseif op == 'c' then -- the attributes just loaded can be patched
    if #v < 63 then
      return corrupt(KEYS[k])
    end
  elseif op == 'E' then -- a key exists, or does not
    if call('EXISTS', key()) ~= tonumber(arg()) then
      return 0
    end
  elseif op == 'G' then -- a string has this value
    if call('GET', key()) ~= arg() then
      return 0
    end
  elseif op == 'M' then -- a member is in a set, or is not
    local name = key()
    typed[name] = true
    if call('SISMEMBER', name, arg()) ~= tonumber(arg()) then
      return 0
    end
  elseif op == 'Z' then -- a member has this score; absent when empty
    local name = key()
    typed[name] = true
    local score, want = call('ZSCORE', name, arg()), arg()
    if not score then
      if want ~= '' then
        return 0
      end
    elseif want == '' or math.floor(tonumber(score)) ~= tonumber(want) then
      return 0
    end
  elseif op == 'A' then -- a hash has exactly these fields
    local name, count = key(), tonumber(arg())
    typed[name] = true
    if call('HLEN', name) ~= count then
      return 0
    end
    for _ = 1, count do
      if call('HGET', name, arg()) ~= arg() then
        return 0
      end
    end
  elseif op == 'L' then -- a list begins with these bytes in so many elements
    local name, count, want = key(), tonumber(arg()), arg()
    typed[name] = true
    if call('LLEN', name) < math.max(count, 1) then
      return 0
    end
    if count > 0 and table.concat(call('LRANGE', name, 0, count - 1)) ~= want then
      return 0
    end
  elseif op == 'l' then -- a list has this length
    if call('LLEN', key()) ~= tonumber(arg()) then
      return 0
    end
  elseif op == 'p' then -- a list is not empty, and at least so long
    local name = key()
    typed[name] = true
    if call('LLEN', name) < math.max(tonumber(arg()), 1) then
      return 0
    end
  else
    return redis.error_reply('ERR unknown check ' .. tostring(op))
  end
end

-- From here on nothing fails.

local out = {}
local n = #ARGV

-- Pushes the next `count` arguments, in pieces that fit the stack.
local function push(command, name, count)
  local length = 0
  while count > 0 do
    local piece = math.min(count, 1000)
    length = call(command, name, unpack(ARGV, a + 1, a + piece))
    a = a + piece
    count = count - piece
  end
  return length
end

while a < n do
  local op = arg()
  if op == 'h' then
    call('HSET', key(), arg(), arg())
  elseif op == 'o' then -- nothing changes: a full server refuses a script at its first write, if that takes memory
    call('HDEL', key(), '')
  elseif op == 's' then -- attributes
    local name, value = key(), arg()
    attrs[name] = value
    call('SET', name, value)
  elseif op == 'P' then -- patch attributes: ranges, then the relative changes, then the tail
    local name = key()
    local value = attrs[name]
    local head = sub(value, 1, 63)
    for _ = 1, tonumber(arg()) do
      local at, bytes = tonumber(arg()), arg()
      head = sub(head, 1, at - 1) .. bytes .. sub(head, at + #bytes)
    end
    local mode, nlink, length = arg(), arg(), arg()
    if mode ~= '' then
      mode = tonumber(mode)
      local high = math.floor(mode / 256)
      head = sub(head, 1, 1) .. char(byte(head, 2) - byte(head, 2) % 16 + high, mode % 256) .. sub(head, 4)
    end
    if nlink ~= '' then
      local links = unpack_int('>I4', head, 48) + tonumber(nlink)
      links = math.min(math.max(links, 0), 4294967295)
      head = sub(head, 1, 47) .. pack_int('>I4', links) .. sub(head, 52)
    end
    if length ~= '' then
      local high, low = unpack_int('>I4I4', head, 52)
      local want_high, want_low = unpack_int('>I4I4', length)
      if high < want_high or (high == want_high and low < want_low) then
        head = sub(head, 1, 51) .. length .. sub(head, 60)
      end
    end
    local parent, acls, tier = tail_of(value)
    local set_parent, set_acls, set_tier = arg(), arg(), arg()
    if set_parent ~= '' then parent = set_parent end
    if set_acls ~= '' then acls = set_acls end
    if set_tier ~= '' then tier = byte(set_tier) end
    value = head .. parent .. (acls == ZERO8 and '' or acls) .. (tier == 0 and '' or char(tier)) .. '\0'
    attrs[name] = value
    call('SET', name, value)
  elseif op == '+' then
    call('INCRBY', key(), arg())
  elseif op == 'A' then -- append to a list
    local name, existing, count = key(), arg(), tonumber(arg())
    out[#out + 1] = push(existing == '1' and 'RPUSHX' or 'RPUSH', name, count)
  elseif op == 'x' then
    call('HDEL', key(), arg())
  elseif op == 'i' then
    call('HINCRBY', key(), arg(), arg())
  elseif op == 'c' then -- the next steps, all of 'i', apply only where a field is there
    local name, field, steps = key(), arg(), tonumber(arg())
    if call('HEXISTS', name, field) == 0 then
      k = k + steps
      a = a + 3 * steps
    end
  elseif op == 'R' then -- slice references; 0 is stored as nothing
    local name, field = key(), arg()
    local references = call('HINCRBY', name, field, arg())
    if references == 0 then
      call('HDEL', name, field)
    end
    out[#out + 1] = references + 1
  elseif op == 'U' then
    local name = key()
    attrs[name] = nil
    call('UNLINK', name)
  elseif op == 'S' then
    call('SET', key(), arg())
  elseif op == 'a' then
    call('SADD', key(), arg())
  elseif op == 'r' then
    call('SREM', key(), arg())
  elseif op == 'z' then
    call('ZADD', key(), arg(), arg())
  elseif op == 'y' then
    call('ZREM', key(), arg())
  elseif op == 'C' then -- replace a list
    local name, count = key(), tonumber(arg())
    call('UNLINK', name)
    push('RPUSH', name, count)
  elseif op == 'T' then -- replace the beginning of a list; the new elements come last first
    local name, cut, count = key(), arg(), tonumber(arg())
    call('LTRIM', name, cut, -1)
    push('LPUSH', name, count)
  else
    -- The encoder knows no other; stopping here would leave half a batch.
    return redis.error_reply('ERR unknown change ' .. tostring(op))
  end
end

return out
