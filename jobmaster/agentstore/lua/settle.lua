-- settle: delete claimed lists whose every entry is committed or refused by its row, and publish what got a row.
-- keys: meta lists claimed:<name>...
-- args: generation epoch owner lowest_ver channel finished_ids name...
-- answers: OK ver | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: the named lists and their names are gone; finished_ids (16 bytes each, concatenated) are published
-- flags: allow-oom (it only frees memory)
-- why: published before the fence is looked at, because that a job has its row in the master is true whichever agent owns
--      the bucket now. Inside the function, so that one round trip does both; on a cluster PUBLISH goes to every node.

redis.register_function{
  function_name = 'jm2_settle',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    if #args < 6 or #keys - 2 ~= #args - 6 or #args[6] % 16 ~= 0 then
      return redis.error_reply('JMARGS settle takes as many list names as lists, and ids of 16 bytes')
    end
    if #args[6] > 0 then
      redis.call('PUBLISH', args[5], args[6])
    end
    local no, ver = refusal(keys[1], args, OWNED)
    if no then
      return no
    end
    for i = 3, #keys do
      redis.call('UNLINK', keys[i])
    end
    if remove_members('SREM', 'SCARD', keys[2], args, 7, #args) > 0 then
      ver = redis.call('HINCRBY', keys[1], 'ver', 1)
    end
    return { 'OK', ver }
  end,
}
