-- backlog: how much of one bucket waits to be run, and how many jobs were taken out of it.
-- keys: meta pending assigned
-- args: none
-- answers: OK pending due oldest_us taken | NOBUCKET
-- effects: none
-- flags: no-writes
-- why: due counts the due part of assigned; the rest waits for its time. oldest_us is how long the oldest of both has been
--      due by this server's clock, 0 when there is none: an entry of pending is due since it was made. `taken` counts every
--      job that a claim has moved, so two answers give a rate for the whole cluster, without a report of each agent (steps of
--      workflows that go straight into memory are moved by no claim). Not part of depth, which producers call.

redis.register_function{
  function_name = 'jm2_backlog',
  flags = { 'no-writes' },
  callback = function(keys, args)
    if #keys ~= 3 then
      return redis.error_reply('JMARGS backlog takes 3 keys')
    end
    local found = redis.call('HMGET', keys[1], 'state', 'taken')
    if not found[1] then
      return { 'NOBUCKET' }
    end
    local now, oldest = now_us(), 0
    local due = redis.call('ZCOUNT', keys[3], '-inf', now)
    local head = redis.call('LINDEX', keys[2], 0)
    if head then
      oldest = now - made_ms(head) * 1000
    end
    if due > 0 then
      local first = redis.call('ZRANGE', keys[3], 0, 0, 'WITHSCORES')
      local since = tonumber(first[2])
      if since <= 0 then
        since = made_ms(first[1]) * 1000
      end
      oldest = math.max(oldest, now - since)
    end
    return { 'OK', redis.call('LLEN', keys[2]), due, math.max(oldest, 0), tonumber(found[2]) or 0 }
  end,
}
