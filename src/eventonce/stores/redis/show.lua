-- One record; appended to records.lua. KEYS: the name of the record.
-- Returns its fields in the order of ledger.Record, nothing if there is none or it has expired,
-- and 'mismatch' if a newer release wrote it.
local raw = raws[1]
if not raw then return false end
local unpacked = records(brief, of_brief)
local r = unpacked.read(raw)
if not r then return 'mismatch' end
if not unpacked.lives(r, now) then return false end
return {r.token, r.attempt, r.nonce, r.held_until, r.expires, r.done and 1 or 0, r.by, r.result,
        r.digests, r.dead, r.order, r.at, r.tried, r.trying, r.dirty and 1 or 0,
        r.alone and 1 or 0, r.spared}
