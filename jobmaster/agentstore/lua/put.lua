-- put: jobs that the master has just assigned to this bucket, put there by a producer.
-- keys: meta assigned wake
-- args: epoch (due_us entry)...
-- answers: OK | NOBUCKET | FENCED | CLOSED
-- effects: assigned +n; a wake token when something is due earlier than before
-- flags: none
-- why: the row names (bucket, epoch); a copy in a bucket of another epoch could never be recorded. The same entry again is
--      the same member of the sorted set.

redis.register_function{
  function_name = 'jm1_put',
  callback = function(keys, args)
    if #keys ~= 3 or not whole(args[1]) then
      return redis.error_reply('JMARGS put takes 3 keys and an epoch before the pairs')
    end
    local bad = bad_pair(args, 2)
    if bad then
      return bad
    end
    local found = redis.call('HMGET', keys[1], 'epoch', 'state')
    if not found[1] then
      return { 'NOBUCKET' }
    end
    if found[1] ~= args[1] then
      return { 'FENCED' }
    end
    if not INTAKE[found[2]] then
      return { 'CLOSED' }
    end
    add_assigned(keys[2], keys[3], args, 2)
    return { 'OK' }
  end,
}
