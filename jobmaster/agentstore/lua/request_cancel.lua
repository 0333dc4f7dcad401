-- request_cancel: request that the owner of a bucket cancels one of its jobs.
-- keys: meta cancelled wake
-- args: job_id
-- answers: OK | NOBUCKET | CLOSED
-- effects: cancelled +1, one wake token
-- flags: none
-- why: a hint that reaches the owner with its next claim; the row in the master decides. Hence no copy is touched here.

redis.register_function{
  function_name = 'jm2_request_cancel',
  callback = function(keys, args)
    if #keys ~= 3 or #args ~= 1 or #args[1] ~= 16 then
      return redis.error_reply('JMARGS request_cancel takes 3 keys and an id of 16 bytes')
    end
    local state = redis.call('HGET', keys[1], 'state')
    if not state then
      return { 'NOBUCKET' }
    end
    if not OWNED[state] then
      return { 'CLOSED' }
    end
    redis.call('SADD', keys[2], args[1])
    wake_owner(keys[3])
    return { 'OK' }
  end,
}
