-- grant_term: the store authorises the owner of a bucket for a term while the master does not answer.
-- keys: meta
-- args: generation epoch owner lowest_ver term_us
-- answers: OK ver | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: meta.lease_until = this server's clock + term_us (lease_us = term_us): no rescuer begins before that moment; a
--          term of 0 takes it back
-- flags: allow-oom (one number, and an agent that cannot have it must stop)
-- why: an owner whose lease is not renewed may start jobs for half of the term, counted from the sending of this call, and
--      must have stopped before its end. A rescuer fences first and then waits for the rest (see fence), so no job is
--      started by two agents. It changes no job, so the change counter stands still.

redis.register_function{
  function_name = 'jm2_grant_term',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local term = whole(args[5])
    if #keys ~= 1 or #args ~= 5 or not term or term < 0 then
      return redis.error_reply('JMARGS grant_term takes 1 key, the fence and a term in microseconds')
    end
    local no, ver = refusal(keys[1], args, WORKING)
    if no then
      return no
    end
    if term == 0 then
      redis.call('HDEL', keys[1], 'lease_until', 'lease_us')
    else
      redis.call('HSET', keys[1], 'lease_until', string.format('%.0f', now_us() + term), 'lease_us', args[5])
    end
    return { 'OK', ver }
  end,
}
