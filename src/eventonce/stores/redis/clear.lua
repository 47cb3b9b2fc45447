-- Deletes the results of records; appended to records.lua. KEYS: the names of the records.
-- Returns how many had a result; -1 if a newer release wrote one of them, which is not changed.
local unpacked = records(brief, of_brief)
local cleared, mismatch = 0, false
for i, key in ipairs(KEYS) do
  local r = raws[i] and unpacked.read(raws[i])
  if raws[i] and not r then
    mismatch = true
  elseif r and r.result then
    r.result = false
    unpacked.write(key, r)
    cleared = cleared + 1
  end
end
return mismatch and -1 or cleared
