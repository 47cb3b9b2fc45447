-- Judges a batch of claims; appended to records.lua.
--
-- KEYS: one for each claim. ARGV: the arguments of records.lua, the terms that claims share, and
-- the claims, each with the number of its terms.
-- Returns six bytes of the instant and a letter for each claim; if a letter is JUDGED, a list of
-- these bytes and the verdicts of such claims. For a lone claim, instant and letter are one number.
-- The loop answers the most frequent claims, a new fact or a copy of a completed one, without
-- unpacking a record; all others go through the law.

-- The law on claims, with the same answers as ledger.judge.
-- `r` is a record, `c` a claim and `t` the terms that it shares with other claims. Each function
-- returns the verdict, and whether the record changed and must be written.
local function law(records, now)
  local max = math.max

  local function same_id(mine, theirs)
    if mine == '' or theirs == '' then return -1 end
    return mine == theirs and 1 or 0
  end

  local function verdict(kind, fields)
    return {kind, fields.token or 0, fields.attempt or 0, fields.wait or 0,
            fields.same_id or -1, fields.order or false, fields.result or false,
            fields.alone and 1 or 0, fields.spared or 0}
  end

  -- A sliding window starts again with every copy; a fixed one does not.
  local function remembered(r, t)
    if not t.sliding or r.expires >= now + t.remember then return false end
    r.expires = now + t.remember
    return true
  end

  local function duplicate(r, t, c)
    local answer = {order = r.order}
    -- At a tie the record describes the version completed last, and must not answer for another.
    if not c.order or c.digest == r.digests[#r.digests] then
      answer.same_id, answer.result = same_id(r.by, c.by), r.result
    end
    return verdict('duplicate', answer), remembered(r, t)
  end

  local function held(r, t)
    local held_until = records.cut_down(r.held_until, t.lease, now)
    local changed, wait = held_until ~= r.held_until, held_until - now
    r.held_until = held_until
    if r.nonce ~= t.nonce then return verdict('busy', {wait = wait}), changed end
    changed = changed or t.alone and not r.alone
    r.alone = r.alone or t.alone
    return verdict('run', {token = r.token, attempt = r.attempt, wait = wait, spared = r.spared}),
           changed
  end

  local function give_up(r, t, c)
    records.bury(r, t.remember, c.digest, now)
    return verdict('dead', {attempt = r.attempt}), true
  end

  -- Not below the clock in microseconds: a new record must not reuse the tokens of an expired one.
  local function grant(r, t, c, attempt, spared, crashed)
    r.token = max(r.token + 1, now * 1000)
    r.attempt = attempt
    r.nonce = t.nonce
    r.held_until = now + t.lease
    r.expires = max(r.expires, now + max(t.remember, UNSETTLED))
    r.done, r.alone, r.spared = false, t.alone, spared
    if c.order then
      r.dead = c.order == r.tried and records.without(r.dead, c.digest) or {}
      r.tried, r.trying, r.dirty = c.order, c.digest, true
    else
      r.by, r.result, r.digests, r.dead = c.by, false, {}, {}
      r.order, r.at, r.tried, r.trying, r.dirty = false, 0, false, '', false
    end
    return verdict('run', {token = r.token, attempt = attempt, wait = t.lease, alone = crashed,
                           spared = spared}), true
  end

  -- A run that was not settled ended with its process; it counts only if it ran alone there.
  local function next_attempt(r, t, c)
    local crashed = r.nonce ~= 0
    if t.redrive then return grant(r, t, c, 1, 0, crashed) end
    local spared = r.spared + (crashed and not r.alone and 1 or 0)
    if r.attempt - spared >= t.attempts then return give_up(r, t, c) end
    return grant(r, t, c, r.attempt + 1, spared, crashed)
  end

  local function judge_fact(r, t, c)
    if r.done then
      if c.digest ~= '' and #r.digests > 0 and not records.among(r.digests, c.digest) then
        return verdict('conflict', {same_id = same_id(r.by, c.by)}), false
      end
      return duplicate(r, t, c)
    end
    if #r.dead > 0 and not t.redrive then return verdict('dead', {}), false end
    if now < r.held_until then return held(r, t) end
    return next_attempt(r, t, c)
  end

  -- Compared by the events' own times: a copy may arrive days late.
  local function unchanged(r, t, c)
    local between = c.at - r.at
    return t.within > 0 and not r.dirty and #r.digests > 0 and c.digest == r.digests[#r.digests]
      and between >= 0 and between < t.within
  end

  local function judge_state(r, t, c)
    if r.order then
      if c.order < r.order then
        return verdict('stale', {order = r.order}), remembered(r, t)
      end
      if c.order == r.order and records.among(r.digests, c.digest) then return duplicate(r, t, c) end
    end
    local tried = c.order == r.tried
    local this_version = tried and c.digest == r.trying
    if tried and records.among(r.dead, c.digest) and not t.redrive then
      return verdict('dead', {}), false
    end
    if now < r.held_until then return held(r, t) end
    if r.tried and c.order < r.tried then
      -- A newer version may have had its effect: this one waits for it, then is a dead letter.
      local till = r.held_until + NEWER_WAIT_LEASES * t.lease
      if now < till and #r.dead == 0 then
        return verdict('busy', {wait = till - now, order = r.tried}), false
      end
      return verdict('dead', {order = r.tried}), false
    end
    if unchanged(r, t, c) then
      local won = r.order
      r.order, r.by, r.digests = c.order, c.by, {c.digest}
      r.expires = max(r.expires, now + t.remember)
      return verdict('unchanged', {order = won}), true
    end
    if this_version then return next_attempt(r, t, c) end
    return grant(r, t, c, 1, 0, false)
  end

  local function judge(raw, t, c)
    local r = raw and records.read(raw)
    local answer, changed
    if raw and not r then return {'mismatch'}, false end
    if not r or not records.lives(r, now) then
      r = records.new()
      answer, changed = grant(r, t, c, 1, 0, false)
    elseif c.order then
      answer, changed = judge_state(r, t, c)
    else
      answer, changed = judge_fact(r, t, c)
    end
    if t.peek then
      return answer[1] == 'run' and verdict('run', {}) or answer, false
    end
    return answer, changed and r
  end

  return judge
end

local FIRST_RUN, COPY, OTHER_ID, SAME_ID, JUDGED = 114, 99, 112, 100, 118  -- r, c, p, d, v
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
        -- As text: otherwise Redis would format the number again for each record.
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
      letter = (by == '' or winner == '') and COPY or by == winner and SAME_ID or OTHER_ID
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

-- WAIT counts only writes of this connection: without one, it would not confirm what was read.
if waiting == 1 and seen and not written then
  call('SET', KEYS[seen], raws[seen], 'KEEPTTL')
end
if #verdicts > 0 then
  return {pack('>I6', now) .. string.char(unpack(letters)), verdicts}
end
return #KEYS == 1 and now * 256 + letters[1] or pack('>I6', now) .. string.char(unpack(letters))
