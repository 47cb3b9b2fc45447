-- The arguments of a call, and records as bytes; the beginning of every script that reads records.
--
-- The first byte of a record names its form. A record of an unknown form is a newer release's, and
-- is not changed. Bytes after the known ones come from a newer minor release, and are kept.
--   DONE    a completed fact: token, expires, by, digest
--   RESULT  the same with its result
--   HELD    a fact that was granted: token, expires, held_until, attempt, nonce, by
--   LISTED  anything else: all fields as a MessagePack array, in the order of ledger.Record
--   BRIEF   from here on: a completed fact in twelve bytes, as most records end; see below
-- KEPT_DIGESTS, NEWER_WAIT_LEASES, UNSETTLED and LONGEST_LEASE, the constants of the law, are set by
-- codec.py.
local DONE, RESULT, HELD, BRIEF = 1, 2, 3, 192

-- A completed fact as two words and the four bytes of its `by`: its instant since 2020 in 39 bits,
-- which last until 2037, and its life in days and, up to a minute, milliseconds more. Redis
-- allocates 32 bytes for a value of up to twelve, and 40 to 48 for the same fact as DONE.
local function brief(token, expires)
  local at = token / 1000 - 1577836800000
  local life = expires - token / 1000
  local days, rest = math.floor(life / 86400000), life % 86400000
  if at % 1 == 0 and at >= 0 and at < 549755813888 and days >= 0 and days < 128 and rest < 65536 then
    return struct.pack('>I4I4', 3221225472 + days * 8388608 + math.floor(at / 65536),
                       at % 65536 * 65536 + rest)
  end
end

local function of_brief(raw)
  local high, low = struct.unpack('>I4I4', raw)
  local at = 1577836800000 + high % 8388608 * 65536 + math.floor(low / 65536)
  local days = math.floor((high - 3221225472) / 8388608)
  return at * 1000, at + days * 86400000 + low % 65536
end

-- The one argument begins with the instant (0 except in tests: then the server's clock is read),
-- whether replicas are waited for, and the number of terms.
local packed = ARGV[1]
local now, waiting, many, at = struct.unpack('>I8BI2', packed)
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local raws = #KEYS == 1 and {redis.call('GET', KEYS[1])} or redis.call('MGET', unpack(KEYS))

-- The functions that the law needs. Creating them costs as much as answering a new fact or a copy,
-- so `records` is called only when a record must be unpacked.
local function records(brief, of_brief)
  local DONE, RESULT, HELD, LISTED, BRIEF = 1, 2, 3, 4, 192
  local MOST_ATTEMPTS = 65535
  local byte, sub, max, min = string.byte, string.sub, math.max, math.min
  local pack, parse = struct.pack, struct.unpack
  local all = {}

  function all.new()
    return {
      token = 0, attempt = 0, nonce = 0, held_until = 0, expires = 0, done = false, by = '',
      result = false, digests = {}, dead = {}, order = false, at = 0, tried = false, trying = '',
      dirty = false, alone = false, spared = 0, extra = '',
    }
  end

  function all.read(raw)
    local form, r, after = byte(raw), all.new(), nil
    if form == HELD then
      r.token, r.expires, r.held_until, r.attempt, r.nonce, r.by, after =
        parse('>I7I6I6I2I7Bc0', raw, 2)
    elseif form == DONE or form == RESULT then
      local digest
      r.done = true
      r.token, r.expires, r.by, digest, after = parse('>I7I6Bc0Bc0', raw, 2)
      if digest ~= '' then r.digests = {digest} end
      if form == RESULT then r.result, after = parse('>I4c0', raw, after) end
    elseif form == LISTED then
      local last, f = cmsgpack.unpack_one(raw, 1)
      after = last < 0 and #raw + 1 or last + 1
      r.token, r.attempt, r.nonce, r.held_until, r.expires, r.done, r.by, r.result, r.digests,
        r.dead, r.order, r.at, r.tried, r.trying, r.dirty, r.alone, r.spared = unpack(f)
    elseif form >= BRIEF then
      r.done, r.by, after = true, sub(raw, 9, 12), 13
      r.token, r.expires = of_brief(raw)
    else
      return nil
    end
    r.extra = sub(raw, after)
    return r
  end

  function all.write(key, r)
    local raw
    if r.tried then
      raw = nil
    elseif r.done then
      local digest = r.digests[1] or ''
      local short = digest == '' and not r.result and #r.by == 4 and brief(r.token, r.expires)
      if short then
        raw = short .. r.by
      else
        raw = pack('>BI7I6Bc0Bc0', r.result and RESULT or DONE, r.token, r.expires, #r.by, r.by,
                   #digest, digest)
        if r.result then raw = raw .. pack('>I4c0', #r.result, r.result) end
      end
    elseif #r.dead == 0 and r.attempt <= MOST_ATTEMPTS and not r.alone and r.spared == 0 then
      raw = pack('>BI7I6I6I2I7Bc0', HELD, r.token, r.expires, r.held_until, r.attempt, r.nonce,
                 #r.by, r.by)
    end
    if not raw then
      raw = string.char(LISTED) .. cmsgpack.pack({
        r.token, r.attempt, r.nonce, r.held_until, r.expires, r.done, r.by, r.result, r.digests,
        r.dead, r.order, r.at, r.tried, r.trying, r.dirty, r.alone, r.spared,
      })
    end
    redis.call('SET', key, raw .. r.extra, 'PXAT', max(r.expires, r.held_until))
  end

  function all.lives(r, now)
    return now < r.expires or now < r.held_until
  end

  -- The end of a lease; an end that lies too far ahead is from before the clock was set back.
  function all.cut_down(held_until, lease, now)
    return min(held_until, now + max(lease, LONGEST_LEASE))
  end

  function all.among(digests, digest)
    for _, known in ipairs(digests) do
      if known == digest then return true end
    end
    return false
  end

  -- The digests with one more; only the last KEPT_DIGESTS are kept.
  function all.with(digests, digest)
    local more = {}
    for i = max(1, #digests - KEPT_DIGESTS + 2), #digests do more[#more + 1] = digests[i] end
    more[#more + 1] = digest
    return more
  end

  function all.without(digests, digest)
    local fewer = {}
    for _, known in ipairs(digests) do
      if known ~= digest then fewer[#fewer + 1] = known end
    end
    return fewer
  end

  function all.bury(r, remember, digest, now)
    r.nonce = 0
    r.held_until = min(r.held_until, now)
    r.expires = max(r.expires, now + max(remember, UNSETTLED))
    r.dead = all.with(r.dead, digest)
  end

  return all
end
