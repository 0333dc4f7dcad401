-- remove_kept: take out exactly the outcomes of one page that the master has settled.
-- keys: meta kept
-- args: generation epoch owner lowest_ver count digest outcome...
-- answers: OK ver removed | GEN | ROLLBACK ver | FENCED ver epoch | CLOSED ver state
-- effects: the first count outcomes are cut off if the sha1 of their concatenation is digest, otherwise nothing; the
--          outcomes given are put back at the end
-- flags: allow-oom (it frees memory)
-- why: as remove_page. What the master refuses to take (its values, not its identity) goes to the end, so that it is kept
--      and delays no other outcome; in the same step, so that a lost reply neither loses nor doubles it. Put back first:
--      cut off first, the list may be gone (see prelude), and what was to be put back with it.

redis.register_function{
  function_name = 'jm2_remove_kept',
  flags = { 'allow-oom' },
  callback = function(keys, args)
    local count = whole(args[5])
    if #keys ~= 2 or #args < 6 or not count or count < 1 or #args - 6 > count then
      return redis.error_reply('JMARGS remove_kept takes 2 keys, the fence, a count, a digest and at most count outcomes')
    end
    local no = refusal(keys[1], args, OWNED)
    if no then
      return no
    end
    local items, removed = redis.call('LRANGE', keys[2], 0, count - 1), 0
    if #items == count and redis.sha1hex(table.concat(items)) == args[6] then
      in_chunks('RPUSH', keys[2], args, 7, #args)
      redis.call('LTRIM', keys[2], count, -1)
      removed = count - (#args - 6)
    end
    return { 'OK', redis.call('HINCRBY', keys[1], 'ver', 1), removed }
  end,
}
