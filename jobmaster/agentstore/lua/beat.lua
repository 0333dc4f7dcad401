-- beat: the heartbeat of an agent: a key that expires when the agent stops.
-- keys: agent
-- args: ttl_ms
-- answers: OK
-- effects: agent = 1 with a time to live
-- flags: allow-oom (one tiny key of each agent: an agent that cannot beat stops working, and only a working agent empties a full store)
-- why: a plain SET is refused at maxmemory. Then the lease is not renewed, the agents of a full store end one after the
--      other, and nothing is left to free its memory.

redis.register_function{
  function_name = 'jm2_beat',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local ttl = whole(args[1])
    if #keys ~= 1 or #args ~= 1 or not ttl or ttl < 1 then
      return redis.error_reply('JMARGS beat takes 1 key and a time to live in milliseconds')
    end
    redis.call('SET', keys[1], '1', 'PX', args[1])
    return { 'OK' }
  end,
}
