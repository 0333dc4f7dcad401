-- freeze: an operator freezes a bucket: nothing is put in, nothing is claimed.
-- keys: meta
-- args: epoch owner
-- answers: OK | NOBUCKET | FENCED epoch | CLOSED state
-- effects: meta.state ACTIVE -> FROZEN; nothing when it is FROZEN already
-- flags: allow-oom
-- why: the freeze is written in the master first, so epoch and owner are those of the row: a bucket that has another
--      owner since then is left alone. Settling and keeping outcomes go on (what has run is still recorded), and so does
--      fencing by a rescuer. The operator is not the owner: the change counter stays.

redis.register_function{
  function_name = 'jm2_freeze',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    if #keys ~= 1 or #args ~= 2 or not whole(args[1]) or #args[2] ~= 16 then
      return redis.error_reply('JMARGS freeze takes 1 key, epoch and owner (16 bytes)')
    end
    local found = redis.call('HMGET', keys[1], 'epoch', 'owner', 'state')
    if not found[1] then
      return { 'NOBUCKET' }
    end
    if found[1] ~= args[1] or found[2] ~= args[2] then
      return { 'FENCED', tonumber(found[1]) }
    end
    if found[3] == 'ACTIVE' then
      redis.call('HSET', keys[1], 'state', 'FROZEN')
    elseif found[3] ~= 'FROZEN' then
      return { 'CLOSED', found[3] }
    end
    return { 'OK' }
  end,
}
