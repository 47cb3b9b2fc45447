-- One step of a count of records. ARGV: where SCAN left off, the pattern, how many to look at.
-- Answers where it left off now, and how many it found.
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
return {step[1], #step[2]}
