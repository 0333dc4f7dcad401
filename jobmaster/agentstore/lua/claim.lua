-- claim: move jobs into a list named by the owner, and return them.
-- keys: meta pending assigned claimed:<name> lists cancelled
-- args: generation epoch owner lowest_ver limit name [bytes_max [oldest]]
-- answers: OK ver now_us next_due_us hint remaining {cancelled id...} {entry...} [oldest_us, when asked: when the first job
--          that is left in pending was made, 0 = none]
--          | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: the oldest of pending and of the due part of assigned -> claimed:<name> (+ its name in lists), at most limit and
--          of together bytes_max bytes, but always one; hint is taken; cancelled is read and stays until its owner has noted
--          it (withdraw). meta.taken counts what was moved. Nothing taken: no list. The list exists: it is returned again and nothing is changed. A name that
--          ends in -<n> takes nothing when a list of that or a higher number was made before: meta keeps the highest.
--          The counters of meta are read and written in one call each: every claim pays for each call.
-- flags: allow-oom (a full store must be emptied, and a move needs no room)
-- why: nothing is popped before it is safe elsewhere: the list stays until the master has every job in it. The owner
--      chooses the name, so a claim whose reply was lost is sent again; when both arrive, and the first one only after the
--      list of the second was settled and deleted, it must not make that list anew: its name is known as one that may go,
--      and jobs that no agent has seen would go with it. (Names without a number have no such guard.) List moves by the batch were measured 3-4 times
--      cheaper than streams and than one lease per job. pending and assigned share a claim by age (when a job fell due, or
--      was made), so that a lasting stream into the one keeps nothing waiting in the other. Without bytes_max (a caller of an
--      earlier build) the bytes are not bounded.

-- What pending and the due part of assigned give: the oldest first, taken out of them; and the bytes of what was in pending.
-- In assigned the jobs due at once (score 0) lie before all others, in the order of their ids, so there are three queues.
local function take(pending, assigned, now, limit, bytes_max, pending_bytes)
  local due = redis.call('ZCOUNT', assigned, '-inf', now)
  local taken, count, size, from_pending = {}, 0, 0, 0
  if due == 0 and pending_bytes <= bytes_max then
    taken = redis.call('LPOP', pending, limit) or {}
    for i = 1, #taken do
      from_pending = from_pending + #taken[i]
    end
    return taken, from_pending
  end
  local at_once = due > 0 and redis.call('ZCOUNT', assigned, '-inf', 0) or 0
  local function queue(command, key, first, most, ages)
    local items, left_out = items_from(command, key, first, math.min(limit, most), bytes_max, ages)
    items[#items + 1] = left_out -- when its turn comes, it does not fit
    return { items = items, ages = ages, next = 1 }
  end
  local timed = queue('ZRANGE', assigned, at_once, due - at_once, {})
  local untimed = queue('ZRANGE', assigned, 0, at_once)
  local waiting = queue('LRANGE', pending, 0, limit)
  local queues = { timed, untimed, waiting }
  while count < limit do
    local oldest, oldest_age
    for i = 1, 3 do
      local from = queues[i]
      local item = from.items[from.next]
      local age = item and (from.ages and from.ages[from.next] or made_ms(item) * 1000)
      if age and (not oldest or age < oldest_age) then
        oldest, oldest_age = from, age
      end
    end
    local item = oldest and oldest.items[oldest.next]
    if not item or (size + #item > bytes_max and count > 0) then
      break
    end
    count, size, oldest.next = count + 1, size + #item, oldest.next + 1
    taken[count] = item
    if oldest == waiting then
      from_pending = from_pending + #item
    end
  end
  if timed.next > 1 then
    redis.call('ZREMRANGEBYRANK', assigned, at_once, at_once + timed.next - 2)
  end
  if untimed.next > 1 then
    redis.call('ZREMRANGEBYRANK', assigned, 0, untimed.next - 2)
  end
  if waiting.next > 1 then
    redis.call('LTRIM', pending, waiting.next - 1, -1)
  end
  return taken, from_pending
end

redis.register_function{
  function_name = 'jm2_claim',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local limit, name, bytes_max = whole(args[5]), args[6], math.huge
    if #args >= 7 then
      bytes_max = whole(args[7])
    end
    if #keys ~= 6 or #args < 6 or #args > 8 or not limit or limit < 0 or #name == 0 or not bytes_max then
      return redis.error_reply('JMARGS claim takes 6 keys, the fence, a limit, a list name and a bound in bytes')
    end
    local no, ver, bytes, hint = refusal(keys[1], args, WORKING)
    if no then
      return no
    end
    local now = now_us()
    local taken, cancelled, hinted = {}, {}, 0
    if redis.call('EXISTS', keys[4]) == 1 then
      taken = redis.call('LRANGE', keys[4], 0, -1)
    else
      local number = tonumber(string.match(name, '%-(%d+)$'))
      local noted = redis.call('HMGET', keys[1], 'listed', 'taken')
      local stale = number and number <= (tonumber(noted[1]) or 0)
      if limit > 0 and not stale then
        local from_pending
        taken, from_pending = take(keys[2], keys[3], now, limit, bytes_max, bytes)
        if #taken > 0 then
          in_chunks('RPUSH', keys[4], taken, 1, #taken)
          redis.call('SADD', keys[5], name)
          ver = ver + 1
          local counters = { 'ver', ver, 'taken', (tonumber(noted[2]) or 0) + #taken }
          if number then
            counters[5], counters[6] = 'listed', number
          end
          if from_pending > 0 then
            counters[#counters + 1] = 'bytes'
            counters[#counters + 1] = math.max(0, bytes - from_pending)
          end
          redis.call('HSET', keys[1], unpack(counters))
        end
      end
      if hint then
        redis.call('HDEL', keys[1], 'hint')
        hinted = 1
      end
    end
    if redis.call('EXISTS', keys[6]) == 1 then
      cancelled = redis.call('SRANDMEMBER', keys[6], CHUNK)
    end
    local next_due = redis.call('ZRANGE', keys[3], 0, 0, 'WITHSCORES')[2]
    local answer = { 'OK', ver, now, next_due and math.max(1, tonumber(next_due)) or 0, hinted, redis.call('LLEN', keys[2]), cancelled, taken }
    if #args == 8 then
      local oldest = redis.call('LINDEX', keys[2], 0)
      answer[9] = oldest and made_ms(oldest) * 1000 or 0
    end
    return answer
  end,
}
