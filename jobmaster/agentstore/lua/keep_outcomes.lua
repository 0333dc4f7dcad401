-- keep_outcomes: keep outcomes while the master is down, and delete the claimed lists they come from.
-- keys: meta kept lists claimed:<name>...
-- args: generation epoch owner lowest_ver outcomes_count outcome... name...
-- answers: OK ver | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: kept +n, the named lists and their names are gone
-- flags: allow-oom (outcomes are smaller than the jobs they replace, and they cannot wait outside)
-- why: one step, so that a crash leaves either the jobs or their outcomes. Sent again after a lost reply, the outcomes lie
--      there twice; each carries its identity, so the second is recognised as our own success.

redis.register_function{
  function_name = 'jm2_keep_outcomes',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local count = whole(args[5])
    if #keys < 3 or not count or count < 0 or #args - 5 - count ~= #keys - 3 then
      return redis.error_reply('JMARGS keep_outcomes takes the fence, a count, as many outcomes, and as many names as lists')
    end
    local no, ver = refusal(keys[1], args, OWNED)
    if no then
      return no
    end
    in_chunks('RPUSH', keys[2], args, 6, 5 + count)
    for i = 4, #keys do
      redis.call('UNLINK', keys[i])
    end
    remove_members('SREM', 'SCARD', keys[3], args, 6 + count, #args)
    return { 'OK', redis.call('HINCRBY', keys[1], 'ver', 1) }
  end,
}
