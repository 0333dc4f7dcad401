-- hint: notify the owner that HELD jobs of its lane and priority are due.
-- keys: meta wake
-- args: none
-- answers: OK | NOBUCKET | CLOSED
-- effects: meta.hint = 1, one wake token
-- flags: none
-- why: only where meta exists, so that a hint never brings back keys of a deleted bucket. A lost hint costs one round of
--      the onboarding scan, not a job.

redis.register_function{
  function_name = 'jm2_hint',
  callback = function(keys, args)
    if #keys ~= 2 then
      return redis.error_reply('JMARGS hint takes 2 keys')
    end
    local state = redis.call('HGET', keys[1], 'state')
    if not state then
      return { 'NOBUCKET' }
    end
    if not INTAKE[state] then
      return { 'CLOSED' }
    end
    redis.call('HSET', keys[1], 'hint', '1')
    wake_owner(keys[2])
    return { 'OK' }
  end,
}
