-- delete_bucket: remove the keys of a retired bucket.
-- keys: meta pending assigned lists spilled cancelled wake
-- args: none
-- answers: OK | NOTEMPTY
-- effects: every key of the bucket is gone; nothing when a job or outcome lies there or when it still takes jobs
-- flags: allow-oom (it only frees memory)
-- why: no fence, the master has forgotten the owner by now; what guards the jobs is the look at the four lists. Keys that
--      a rolled-back store brought back are not empty or ACTIVE, and are left to be adopted.

redis.register_function{
  function_name = 'jm1_delete_bucket',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    if #keys ~= 7 then
      return redis.error_reply('JMARGS delete_bucket takes 7 keys')
    end
    if INTAKE[redis.call('HGET', keys[1], 'state')]
      or redis.call('EXISTS', keys[2], keys[3], keys[4], keys[5]) > 0 then
      return { 'NOTEMPTY' }
    end
    redis.call('DEL', keys[1], keys[6], keys[7])
    return { 'OK' }
  end,
}
