-- The key of the node behind a stored entry. Nothing for what is no entry, and where the number is too large for Lua,
-- whose numbers are doubles. Begins the scripts that read entries.

local prefix = string.match(KEYS[1], '^{%d+}') or ''

local function node_of(entry)
  if #entry ~= 9 then
    return nil
  end
  local high, low = struct.unpack('>I4I4', entry, 2)
  if high >= 2097152 then
    return nil
  end
  return string.format('%si%.0f', prefix, high * 4294967296 + low)
end

