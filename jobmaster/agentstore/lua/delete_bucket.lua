-- delete_bucket: remove the keys of a retired bucket.
-- keys: meta pending assigned lists kept cancelled wake claimed:<name>...
-- args: name...
-- answers: OK | NOTEMPTY
-- effects: every key of the bucket is gone; nothing when a job or outcome lies there or when it still takes jobs. A claimed
--          list that was found and that lists does not name is named again
-- flags: allow-oom (it only frees memory)
-- why: no fence, the master has forgotten the owner by now; what guards the jobs is the look at the four lists. Keys that
--      a rolled-back store brought back are not empty or ACTIVE, and are left to be adopted. A list and its name are
--      written in one step, so a claimed list without a name is damage; but jobs lie in it, and a rescuer goes by names.

redis.register_function{
  function_name = 'jm2_delete_bucket',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    if #keys < 7 or #keys - 7 ~= #args then
      return redis.error_reply('JMARGS delete_bucket takes 7 keys, and as many names as claimed lists')
    end
    for i = 8, #keys do
      if redis.call('EXISTS', keys[i]) == 1 then
        redis.call('SADD', keys[4], args[i - 7])
      end
    end
    if INTAKE[redis.call('HGET', keys[1], 'state')]
      or redis.call('EXISTS', keys[2], keys[3], keys[4], keys[5]) > 0 then
      return { 'NOTEMPTY' }
    end
    redis.call('DEL', keys[1], keys[6], keys[7])
    return { 'OK' }
  end,
}
