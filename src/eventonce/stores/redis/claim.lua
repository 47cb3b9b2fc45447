-- Judges a batch of claims; stands after records.lua and judge.lua.
--
-- KEYS: one for each claim. ARGV: what records.lua reads, the terms that claims share, and the
-- claims, each with the number of its terms.
-- Answers six bytes of the instant and a letter for each claim; or that and the verdicts of those
-- whose letter is JUDGED, if there are any. Of a lone claim instant and letter are one number.
-- The loop answers what nearly every claim is, a new fact or a copy of a completed one, without
-- unpacking a record; all else goes through the law.
local FIRST_RUN, COPY, REPUBLISHED, REDELIVERED, JUDGED = 114, 99, 112, 100, 118  -- r, c, p, d, v
local FIRST_TERMS, SIZE_OF_TERMS = at, 37
local call, byte, sub, max = redis.call, string.byte, string.sub, math.max
local pack, parse = struct.pack, struct.unpack

at = at + many * SIZE_OF_TERMS
local letters, verdicts, written, seen, unpacked, judge = {}, {}, false, nil, nil, nil
local terms, flags, lease, remember, attempts, nonce, within, state, peek, alone, granted, till

for i = 1, #KEYS do
  local raw, start, letter, order, own_time = raws[i], at, nil, nil, nil
  local number, by, digest
  number, by, digest, at = parse('>I2Bc0Bc0', packed, at)
  if number ~= terms then
    terms, granted = number, nil
    flags, lease, remember, attempts, nonce, within =
      parse('>BI8I8I4I8I8', packed, FIRST_TERMS + (number - 1) * SIZE_OF_TERMS)
    state, peek, alone = flags % 2 == 1, flags % 16 >= 8, flags >= 16
  end
  if state then
    order, own_time, at = parse('>i8i8', packed, at)
  elseif not raw then
    if not peek and not alone then
      if not granted then
        local expires, held_until = now + max(remember, UNSETTLED), now + lease
        granted = pack('>BI7I6I6I2I7', HELD, now * 1000, expires, held_until, 1, nonce)
        -- As text, which Redis would otherwise make of it anew for each record.
        till = string.format('%.0f', max(expires, held_until))
      end
      call('SET', KEYS[i], granted .. sub(packed, start + 2, start + 2 + #by), 'PXAT', till)
      letter, written = FIRST_RUN, true
    end
  elseif (byte(raw) >= BRIEF or byte(raw) == DONE) and flags % 4 < 2 then
    local _, expires, winner, content
    if byte(raw) == DONE then
      _, expires, winner, content = parse('>I7I6Bc0Bc0', raw, 2)
    else
      _, expires = of_brief(raw)
      winner, content = sub(raw, 9, 12), ''
    end
    if now < expires and (digest == content or digest == '' or content == '') then
      letter = (by == '' or winner == '') and COPY or by == winner and REDELIVERED or REPUBLISHED
    end
  end
  if not letter then
    if not judge then
      unpacked = records(brief, of_brief)
      judge = law(unpacked, now)
    end
    local answer, changed = judge(
      raw,
      {lease = lease, remember = remember, attempts = attempts, nonce = nonce, within = within,
       sliding = flags % 4 >= 2, redrive = flags % 8 >= 4, peek = peek, alone = alone},
      {by = by, digest = digest, order = order, at = own_time})
    if changed then
      unpacked.write(KEYS[i], changed)
      written = true
    end
    letter = JUDGED
    verdicts[#verdicts + 1] = answer
  end
  letters[i] = letter
  if raw then seen = i end
end

-- WAIT counts this connection's own writes: with none it would confirm nothing of what was read.
if waiting == 1 and seen and not written then
  call('SET', KEYS[seen], raws[seen], 'KEEPTTL')
end
if #verdicts > 0 then
  return {pack('>I6', now) .. string.char(unpack(letters)), verdicts}
end
return #KEYS == 1 and now * 256 + letters[1] or pack('>I6', now) .. string.char(unpack(letters))
