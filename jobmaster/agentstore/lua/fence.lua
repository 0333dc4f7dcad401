-- fence: take a bucket for its rescuer.
-- keys: meta
-- args: generation epoch owner
-- answers: OK ver epoch | LEASED ver wait_us | FENCED ver epoch
-- effects: meta gets this generation, epoch and owner, state DRAINING; it is made when the store had lost it
-- flags: allow-oom
-- why: only a higher epoch, or the same one of the same owner (sent again), is accepted; the answer names the epoch that
--      stands, so that a refused rescuer claims a higher one in the master. From OK on the old owner gets FENCED and
--      producers CLOSED, so nothing is added while pages move. No counter floor: a rescuer has seen none.
--      LEASED: fenced like OK, but the former owner may work until the end of its term (see grant_term): no page may be moved
--      for wait_us; then the same fence is sent again. Never longer than the term that was given: this clock may have been
--      set back since.

redis.register_function{
  function_name = 'jm2_fence',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local epoch = whole(args[2])
    if #keys ~= 1 or #args ~= 3 or #args[1] ~= 16 or #args[3] ~= 16 or not epoch then
      return redis.error_reply('JMARGS fence takes 1 key, generation (16 bytes), epoch and owner (16 bytes)')
    end
    local found = redis.call('HMGET', keys[1], 'epoch', 'owner', 'ver', 'lease_until', 'lease_us')
    local present = tonumber(found[1])
    if present and (present > epoch or (present == epoch and found[2] ~= args[3])) then
      return { 'FENCED', tonumber(found[3]) or 0, present }
    end
    redis.call('HSET', keys[1], 'gen', args[1], 'epoch', args[2], 'owner', args[3], 'state', 'DRAINING')
    local ver = redis.call('HINCRBY', keys[1], 'ver', 1)
    local now = now_us()
    local wait_us = math.min((tonumber(found[4]) or 0) - now, tonumber(found[5]) or 0)
    if wait_us > 0 then
      redis.call('HSET', keys[1], 'lease_until', string.format('%.0f', now + wait_us))
      return { 'LEASED', ver, wait_us }
    end
    redis.call('HDEL', keys[1], 'lease_until', 'lease_us')
    return { 'OK', ver, epoch }
  end,
}
