-- close_intake: no new jobs from now on; the owner goes on working.
-- keys: meta
-- args: generation epoch owner lowest_ver
-- answers: OK ver | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: meta.state ACTIVE -> COMPLETING; nothing when it is COMPLETING already
-- flags: allow-oom
-- why: after OK every submit, put and assign gets CLOSED, because they read the same field in the same thread.

redis.register_function{
  function_name = 'jm2_close_intake',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    if #keys ~= 1 or #args ~= 4 then
      return redis.error_reply('JMARGS close_intake takes 1 key and the fence')
    end
    local no, ver = refusal(keys[1], args, WORKING)
    if no then
      return no
    end
    if redis.call('HGET', keys[1], 'state') == 'ACTIVE' then
      redis.call('HSET', keys[1], 'state', 'COMPLETING')
      ver = redis.call('HINCRBY', keys[1], 'ver', 1)
    end
    return { 'OK', ver }
  end,
}
