-- Runs commands one after another and answers what each of them did: what MULTI and EXEC do, on a server that has no
-- memory left. There it refuses to queue any command, those that read too. Each command is preceded by its length.

local out, a = {}, 1
while a <= #ARGV do
  local count = tonumber(ARGV[a])
  out[#out + 1] = redis.pcall(unpack(ARGV, a + 1, a + count))
  a = a + count + 1
end
return out
