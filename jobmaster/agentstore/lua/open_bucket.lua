-- open_bucket: make a new bucket that takes jobs.
-- keys: meta
-- args: generation epoch owner lowest_ver
-- answers: OK ver | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: meta of an ACTIVE bucket; nothing when it is there already with the same fence
-- flags: allow-oom (one small hash of each bucket: an agent that starts at a full store must be able to help to empty it)
-- why: sending it again is safe. A caller that has seen a counter of this bucket gets GEN instead of a fresh bucket: what lay
--      in the old one is gone, and that must not pass for an empty start.

redis.register_function{
  function_name = 'jm2_open_bucket',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local floor = whole(args[4])
    if #keys == 1 and floor == 0 and #args[1] == 16 and #args[3] == 16 and whole(args[2])
      and redis.call('EXISTS', keys[1]) == 0 then
      redis.call('HSET', keys[1], 'gen', args[1], 'epoch', args[2], 'owner', args[3], 'state', 'ACTIVE',
        'ver', 1, 'seq', 0, 'bytes', 0)
      return { 'OK', 1 }
    end
    local no, ver = refusal(keys[1], args, INTAKE)
    return no or { 'OK', ver }
  end,
}
