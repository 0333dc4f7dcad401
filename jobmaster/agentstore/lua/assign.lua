-- assign: jobs that the master has assigned to this bucket (onboarding, retry here), put there by its owner.
-- keys: meta assigned wake
-- args: generation epoch owner lowest_ver (due_us entry)...
-- answers: OK ver | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: assigned +n, without copies that clients have recalled; a wake token when something is due earlier than before
-- flags: none (out of memory: the rows go back to HELD, unless an earlier try was not answered)
-- why: marked in the master first, put second; a caller that is refused at its first try releases the rows. The same entry
--      again is the same member of the sorted set.

redis.register_function{
  function_name = 'jm2_assign',
  callback = function(keys, args)
    if #keys ~= 3 or #args < 4 then
      return redis.error_reply('JMARGS assign takes 3 keys and the fence before the pairs')
    end
    local bad = bad_pair(args, 5)
    if bad then
      return bad
    end
    local no, ver, _, _, recalled = refusal(keys[1], args, INTAKE)
    if no then
      return no
    end
    if #args > 4 then
      add_assigned(keys[2], keys[3], args, 5, recalled)
      ver = redis.call('HINCRBY', keys[1], 'ver', 1)
    end
    return { 'OK', ver }
  end,
}
