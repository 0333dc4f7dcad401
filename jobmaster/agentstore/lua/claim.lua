-- claim: move jobs into a list named by the owner, and return them.
-- keys: meta pending assigned claimed:<name> lists cancelled
-- args: generation epoch owner lowest_ver limit name
-- answers: OK ver now_us next_due_us hint remaining {cancelled id...} {entry...}
--          | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: due part of assigned, oldest first, then pending -> claimed:<name> (+ its name in lists); hint is taken;
--          cancelled is read and stays until its owner has noted it (withdraw). Nothing taken: no list. The list exists: it
--          is returned again and nothing is changed. A name that ends in -<n> takes nothing when a list of that or a higher
--          number was made before: meta keeps the highest.
-- flags: allow-oom (a full store must be emptied, and a move needs no room)
-- why: nothing is popped before it is safe elsewhere: the list stays until the master has every job in it. The owner
--      chooses the name, so a claim whose reply was lost is asked again; when both arrive, and the first one only after the
--      list of the second was settled and deleted, it must not make that list anew: its name is known as one that may go,
--      and jobs that nobody has seen would go with it. (Names without a number have no such guard.) List moves by the batch were measured 3-4 times
--      cheaper than streams and than one lease per job.

redis.register_function{
  function_name = 'jm1_claim',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local limit, name = whole(args[5]), args[6]
    if #keys ~= 6 or #args ~= 6 or not limit or limit < 0 or #name == 0 then
      return redis.error_reply('JMARGS claim takes 6 keys, the fence, a limit and a list name')
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
      local stale = number and number <= (tonumber(redis.call('HGET', keys[1], 'listed')) or 0)
      if limit > 0 and not stale then
        local due = redis.call('ZRANGE', keys[3], '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
        local waiting = {}
        if #due < limit then
          waiting = redis.call('LPOP', keys[2], limit - #due) or {}
        end
        if #due > 0 then
          redis.call('ZREMRANGEBYRANK', keys[3], 0, #due - 1)
          in_chunks('RPUSH', keys[4], due, 1, #due)
          taken = due
        end
        if #waiting > 0 then
          in_chunks('RPUSH', keys[4], waiting, 1, #waiting)
          for i = 1, #waiting do
            bytes = bytes - #waiting[i]
            taken[#taken + 1] = waiting[i]
          end
          redis.call('HSET', keys[1], 'bytes', math.max(0, bytes))
        end
        if #taken > 0 then
          redis.call('SADD', keys[5], name)
          if number then
            redis.call('HSET', keys[1], 'listed', number)
          end
          ver = redis.call('HINCRBY', keys[1], 'ver', 1)
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
    return { 'OK', ver, now, tonumber(next_due) or 0, hinted, redis.call('LLEN', keys[2]), cancelled, taken }
  end,
}
