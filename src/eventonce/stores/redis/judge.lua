-- The law on claims: ledger.judge, answer for answer. Stands between records.lua and claim.lua.
--
-- `r` is a record, `c` a claim and `t` the terms it shares with others of its batch. Each judgement
-- is the verdict, and whether the record was changed and must be written.
local function law(records, now)
  local max = math.max

  local function redelivery(mine, theirs)
    if mine == '' or theirs == '' then return -1 end
    return mine == theirs and 1 or 0
  end

  local function verdict(kind, fields)
    return {kind, fields.token or 0, fields.attempt or 0, fields.wait or 0,
            fields.redelivery or -1, fields.order or false, fields.result or false,
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
    -- At a tie the record speaks of the version completed last, and must not answer for another.
    if not c.order or c.digest == r.digests[#r.digests] then
      answer.redelivery, answer.result = redelivery(r.by, c.by), r.result
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

  -- Not below the clock in microseconds: after a record expired its tokens must not come back.
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

  -- A run that was not settled ended with its process; it counts only if it was alone there.
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
        return verdict('conflict', {redelivery = redelivery(r.by, c.by)}), false
      end
      return duplicate(r, t, c)
    end
    if #r.dead > 0 and not t.redrive then return verdict('dead', {}), false end
    if now < r.held_until then return held(r, t) end
    return next_attempt(r, t, c)
  end

  -- By the events' own times: a copy may arrive days late, and must not be judged by that.
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
      -- A newer version may have had its effect: this one waits for it, and is then a dead letter.
      local till = r.held_until + PATIENCE * t.lease
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
