-- claimed_lists: the names of the claimed lists of a bucket.
-- keys: meta lists
-- args: generation epoch owner lowest_ver
-- answers: OK ver {name...} | GEN | ROLLBACK ver | FENCED ver epoch
-- effects: none
-- flags: no-writes
-- why: after a reconnect, and now and then, the owner looks for lists it does not know (a reply it never saw).

redis.register_function{
  function_name = 'jm2_claimed_lists',
  flags = { 'no-writes' },
  callback = function(keys, args)
    if #keys ~= 2 or #args ~= 4 then
      return redis.error_reply('JMARGS claimed_lists takes 2 keys and the fence')
    end
    local no, ver = refusal(keys[1], args)
    return no or { 'OK', ver, redis.call('SMEMBERS', keys[2]) }
  end,
}
