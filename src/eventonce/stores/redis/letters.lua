-- Stores or drops dead letters. KEYS: the hash of dead letters by id, and the sorted set that lists
-- them by time: eight bytes of the instant, then the id, all with one score.
-- ARGV: 'put' or 'put_if_full', then id and body of each dead letter; one whose id exists is not
-- stored. A body begins with the eight bytes of its instant. Or 'drop', the eight bytes of an
-- instant or '', and ids: with an instant, only dead letters before it are dropped.
-- Returns how many were stored or dropped.
local changed = 0
if ARGV[1] == 'drop' then
  -- This changes nothing. A user who may not unlist dead letters gets the error before one is gone.
  redis.call('ZREM', KEYS[2], '')
  local before = ARGV[2] ~= '' and struct.unpack('>I8', ARGV[2])
  for i = 3, #ARGV do
    local body = redis.call('HGET', KEYS[1], ARGV[i])
    if body and (not before or struct.unpack('>I8', body) < before) then
      redis.call('HDEL', KEYS[1], ARGV[i])
      redis.call('ZREM', KEYS[2], string.sub(body, 1, 8) .. ARGV[i])
      changed = changed + 1
    end
  end
  return changed
end
-- HDEL of nothing lets the writes after it pass when the memory is full, like GETEX in codec.py.
if ARGV[1] == 'put_if_full' then redis.call('HDEL', KEYS[1], '') end
-- This changes nothing. A user who may not list dead letters gets the error before one is stored.
redis.call('ZADD', KEYS[2], 'XX', 0, '')
for i = 2, #ARGV, 2 do
  if redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('ZADD', KEYS[2], 0, string.sub(ARGV[i + 1], 1, 8) .. ARGV[i])
    changed = changed + 1
  end
end
return changed
