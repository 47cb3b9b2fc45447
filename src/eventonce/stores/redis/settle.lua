-- Settles a batch of runs, with the same answers as ledger.settle.
--
-- KEYS: one for each settlement. ARGV: the arguments of records.lua, the terms that settlements
-- share, and the settlements, each with the number of its terms.
-- Returns a letter for each: kept, fenced, unknown, or a mismatch of formats.
-- The loop at the end answers the most frequent settlement, the completion of a fact by its latest
-- token, without unpacking the record; all others go through the law.
local function law(records, now)
  local KEPT, FENCED = 'k', 'f'
  local COMPLETE, RELEASE, BURY, RETURN = 1, 2, 3, 5
  local max, min = math.max, math.min

  local function complete(r, t, s)
    if not s.order then
      r.done, r.expires, r.by, r.result = true, now + t.remember, s.by, s.result
      r.digests = s.digest ~= '' and {s.digest} or {}
      r.attempt, r.nonce, r.held_until, r.dead, r.alone, r.spared = 0, 0, 0, {}, false, 0
      r.order, r.at, r.tried, r.trying, r.dirty = false, 0, false, '', false
      return true
    end
    -- The same completion again. The order may have advanced since, by an unchanged version.
    if r.done then return false end
    r.digests = s.order == r.order and records.with(r.digests, s.digest) or {s.digest}
    r.dead = records.without(r.dead, s.digest)
    r.attempt, r.nonce, r.held_until, r.alone, r.spared = 0, 0, 0, false, 0
    r.expires = now + (#r.dead > 0 and max(t.remember, UNSETTLED) or t.remember)
    r.done, r.by, r.result, r.order, r.at = true, s.by, s.result, s.order, s.at
    r.trying, r.dirty = '', false
    return true
  end

  local function settle(r, t, s)
    if r.token ~= t.token then return FENCED, false end
    if t.action == COMPLETE then return KEPT, complete(r, t, s) end
    if r.done then return FENCED, false end
    if t.action == BURY then
      if records.among(r.dead, s.digest) then return KEPT, false end
      records.bury(r, t.remember, s.digest, now)
      return KEPT, true
    end
    local frees = t.action == RELEASE or t.action == RETURN
    if r.nonce ~= t.nonce then
      -- Already freed or buried: a late renewal must not take the lease back.
      return frees and not records.among(r.dead, s.digest) and KEPT or FENCED, false
    end
    if frees then
      r.nonce, r.held_until = 0, min(r.held_until, now)
      if t.action == RETURN then r.spared = r.spared + 1 end
    else
      r.held_until = max(now + t.lease, records.cut_down(r.held_until, t.lease, now))
    end
    return KEPT, true
  end

  return settle
end

local KEPT, UNKNOWN, MISMATCH = 'k', 'u', 'm'
local COMPLETE = 1
local FIRST_TERMS, SIZE_OF_TERMS = at, 33
-- The bytes of a held record before the length of its `by`.
local BEFORE_BY = 29
local call, byte, sub = redis.call, string.byte, string.sub
local pack, parse = struct.pack, struct.unpack

at = at + many * SIZE_OF_TERMS
local letters, written, seen, unpacked, settle = {}, false, nil, nil, nil
local terms, flags, lease, remember, nonce, token, action, state, short, completed, till

for i = 1, #KEYS do
  local raw, start, letter, result, order, own_time = raws[i], at, nil, nil, nil, nil
  local number, answered, by, digest
  number, answered, by, digest, at = parse('>I2BBc0Bc0', packed, at)
  if answered == 1 then result, at = parse('>I4c0', packed, at) end
  local as_kept = at - 1
  if number ~= terms then
    terms, short, completed = number, nil, {}
    flags, lease, remember, nonce, token =
      parse('>BI8I8I8I8', packed, FIRST_TERMS + (number - 1) * SIZE_OF_TERMS)
    state, action = flags >= 128, flags % 128
    till = string.format('%.0f', now + remember)
  end
  if state then order, own_time, at = parse('>i8i8', packed, at) end
  if not raw then
    letter = UNKNOWN
  elseif byte(raw) == HELD and action == COMPLETE and not state then
    local latest, expires, held_until = parse('>I7I6I6', raw, 2)
    if latest == token and (now < expires or now < held_until) then
      local known, value = BEFORE_BY + 1 + byte(raw, BEFORE_BY + 1), nil
      if #by == 4 and digest == '' and not result then
        if short == nil then short = brief(token, now + remember) or false end
        value = short and short .. by
      end
      if not value then
        local form = result and RESULT or DONE
        completed[form] = completed[form] or pack('>BI7I6', form, token, now + remember)
        value = completed[form] .. sub(packed, start + 3, as_kept)
      end
      if #raw > known then value = value .. sub(raw, known + 1) end
      call('SET', KEYS[i], value, 'PXAT', till)
      letter, written = KEPT, true
    end
  end
  if not letter then
    if not settle then
      unpacked = records(brief, of_brief)
      settle = law(unpacked, now)
    end
    local r, changed = unpacked.read(raw), false
    if not r then
      letter = MISMATCH
    elseif not unpacked.lives(r, now) then
      letter = UNKNOWN
    else
      letter, changed = settle(
        r,
        {lease = lease, remember = remember, nonce = nonce, token = token, action = action},
        {by = by, digest = digest, result = result or false, order = order, at = own_time})
    end
    if changed then
      unpacked.write(KEYS[i], r)
      written = true
    end
  end
  letters[i] = letter
  if raw then seen = i end
end

-- WAIT counts only writes of this connection: without one, it would not confirm what was read.
if waiting == 1 and seen and not written then
  call('SET', KEYS[seen], raws[seen], 'KEEPTTL')
end
return #KEYS == 1 and letters[1] or table.concat(letters)
