-- One step of a count of records. ARGV: the cursor of SCAN, the pattern, how many keys to check.
-- Returns the next cursor, and the number of records found.
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
return {step[1], #step[2]}
