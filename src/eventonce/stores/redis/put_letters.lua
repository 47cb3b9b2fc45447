-- Keeps letters that are not there yet. KEYS: the hash of letters by id, and the sorted set of
-- their places: eight bytes of the instant, then the id, all of one score, so that they sort by
-- time. ARGV: 1 if they are kept in a memory that is full too, then id and body of each; a body begins
-- with its eight bytes. HDEL of nothing: as scripts.py has it of GETEX.
if ARGV[1] == '1' then redis.call('HDEL', KEYS[1], '') end
for i = 2, #ARGV, 2 do
  if redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('ZADD', KEYS[2], 0, string.sub(ARGV[i + 1], 1, 8) .. ARGV[i])
  end
end
return redis.status_reply('OK')
