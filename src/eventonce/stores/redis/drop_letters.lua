-- Forgets letters. KEYS as in put_letters.lua; ARGV: their ids. Answers how many there were.
local dropped = 0
for _, id in ipairs(ARGV) do
  local body = redis.call('HGET', KEYS[1], id)
  if body then
    redis.call('HDEL', KEYS[1], id)
    redis.call('ZREM', KEYS[2], string.sub(body, 1, 8) .. id)
    dropped = dropped + 1
  end
end
return dropped
