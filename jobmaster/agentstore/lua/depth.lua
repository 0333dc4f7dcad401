-- depth: what lies in one bucket.
-- keys: meta pending assigned lists kept
-- args: none
-- answers: OK pending assigned claimed_lists kept pending_bytes | NOBUCKET
-- effects: none
-- flags: no-writes
-- why: five counters of one moment; placement and `jobmaster status` compare them with each other.

redis.register_function{
  function_name = 'jm2_depth',
  flags = { 'no-writes' },
  callback = function(keys, args)
    if #keys ~= 5 then
      return redis.error_reply('JMARGS depth takes 5 keys')
    end
    local found = redis.call('HMGET', keys[1], 'state', 'bytes')
    if not found[1] then
      return { 'NOBUCKET' }
    end
    return {
      'OK',
      redis.call('LLEN', keys[2]),
      redis.call('ZCARD', keys[3]),
      redis.call('SCARD', keys[4]),
      redis.call('LLEN', keys[5]),
      tonumber(found[2]) or 0,
    }
  end,
}
