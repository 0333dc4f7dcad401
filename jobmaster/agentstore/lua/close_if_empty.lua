-- close_if_empty: retire a bucket in which nothing lies.
-- keys: meta pending assigned lists kept
-- args: generation epoch owner lowest_ver
-- answers: OK ver | NOTEMPTY ver | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: meta.state COMPLETING or DRAINING -> READY_TO_DELETE; nothing when it is that already
-- flags: allow-oom
-- why: the look and the closing are one step; intake was closed before (an ACTIVE bucket answers CLOSED: it has to be
--      COMPLETING first, in the master too).

local CLOSABLE = { COMPLETING = true, DRAINING = true, READY_TO_DELETE = true }

redis.register_function{
  function_name = 'jm2_close_if_empty',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    if #keys ~= 5 or #args ~= 4 then
      return redis.error_reply('JMARGS close_if_empty takes 5 keys and the fence')
    end
    local no, ver = refusal(keys[1], args, CLOSABLE)
    if no then
      return no
    end
    if redis.call('EXISTS', keys[2], keys[3], keys[4], keys[5]) > 0 then
      return { 'NOTEMPTY', ver }
    end
    if redis.call('HGET', keys[1], 'state') ~= 'READY_TO_DELETE' then
      redis.call('HSET', keys[1], 'state', 'READY_TO_DELETE')
      ver = redis.call('HINCRBY', keys[1], 'ver', 1)
    end
    return { 'OK', ver }
  end,
}
