-- unfreeze: the owner unfreezes its bucket, under the epoch that the master gave it.
-- keys: meta wake assigned lists claimed:<name>
-- args: generation epoch owner lowest_ver name
-- answers: OK ver | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: meta gets this epoch and the state ACTIVE, and a wake token is left; under a higher epoch assigned ->
--          claimed:<name> (+ its name in lists); nothing when it has the epoch already and is not FROZEN
-- flags: allow-oom
-- why: an epoch above the one that stands, of the same owner: calls that it sent under the old one and that arrive late are
--      refused from here on. ACTIVE too, because the freeze may not have reached this store; no other state leads back to ACTIVE.
--      What lies in assigned has rows under the old epoch, which refuse an outcome under the new one: the owner gives it back
--      from the claimed list, whose name says which epoch it was. FROZEN under this very epoch is a freeze that the master does
--      not have (a failover lost it): it is over, and assigned is as it was. So a call that arrives late may undo a
--      later freeze in the store; the owner, which starts nothing in the bucket, freezes it again at the next renewal.

local UNFREEZABLE = { FROZEN = true, ACTIVE = true }

redis.register_function{
  function_name = 'jm2_unfreeze',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local floor, epoch = whole(args[4]), whole(args[2])
    if #keys ~= 5 or #args ~= 5 or not floor or not epoch or #args[1] ~= 16 or #args[3] ~= 16 or #args[5] == 0 then
      return redis.error_reply('JMARGS unfreeze takes 5 keys, the fence with the new epoch, and a list name')
    end
    local found = redis.call('HMGET', keys[1], 'gen', 'ver', 'epoch', 'owner', 'state')
    if found[1] ~= args[1] then
      return { 'GEN' }
    end
    local ver, present = tonumber(found[2]) or 0, tonumber(found[3]) or 0
    if ver < floor then
      return { 'ROLLBACK', ver }
    end
    if present > epoch or found[4] ~= args[3] then
      return { 'FENCED', ver, present }
    end
    if not UNFREEZABLE[found[5]] then
      return { 'CLOSED', ver, found[5] }
    end
    if present < epoch or found[5] == 'FROZEN' then
      redis.call('HSET', keys[1], 'epoch', args[2], 'state', 'ACTIVE')
      local waiting = present < epoch and redis.call('ZRANGE', keys[3], 0, -1) or {}
      if #waiting > 0 then
        in_chunks('RPUSH', keys[5], waiting, 1, #waiting)
        redis.call('SADD', keys[4], args[5])
        redis.call('DEL', keys[3])
      end
      ver = redis.call('HINCRBY', keys[1], 'ver', 1)
      wake_owner(keys[2])
    end
    return { 'OK', ver }
  end,
}
